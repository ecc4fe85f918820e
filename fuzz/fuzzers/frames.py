"""Fuzzes WebSocket frames over real sockets: good ones, then one that is spoiled or breaks a rule.

Invariant: answers are whole events, a broken rule is closed with its code, and nothing is held.
"""

import json
from collections import Counter
from collections.abc import Sequence
from random import Random

import attrs

from ...api.application import Application
from ...api.serving.server import ConnectionSource, serve_connections
from ..doubles.served import CAME_LATE, DEADLINE_S, Serve, Served, check_served, serve_filtered
from ..doubles.tcp_client import Ending, converse
from ..doubles.websocket_frames import (
    CLOSE,
    HANDSHAKE,
    PING,
    PONG,
    TEXT,
    FrameReader,
    FrameScript,
    draw_script,
)
from ..fuzzer import Fuzzer, each

IN_FLIGHT = 10
FRAMES_MAX = 300
# 1011, a fault of ours, is none of them.
CLOSE_CODES = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1012})
# A machine that stands still for a pong's time has the server cut a good connection, so whatever
# went wrong is tried again; what is wrong with the server goes wrong each time.
TRIES_MAX = 3
# Codes of applications (RFC 6455, 7.4.2): one that the client sent comes back.
PRIVATE_CODES = range(3000, 5000)


@attrs.frozen
class Talk:
    """Connection: its frames after the handshake, and how it ends."""

    script: FrameScript
    ending: Ending
    # Bytes that are cut off at the end; 0: none.
    cut: int


def _draw_talk(chance: Random) -> Talk:
    """Most are read to the end, so that it is known what became of them."""
    script = draw_script(chance, FRAMES_MAX)
    ending = chance.choice((Ending.RESET, Ending.CLOSE, *[Ending.HALF] * 4))
    return Talk(script, ending, chance.randrange(200) if ending is Ending.RESET else 0)


def check(talks: Sequence[Talk], serve: Serve) -> Counter[str]:
    """Run all against one server, some at once; then it must be as it was."""
    return check_served(talks, _run_one, serve, in_flight=IN_FLIGHT)


async def _run_one(served: Served, talk: Talk, reached: Counter[str]) -> None:
    data = HANDSHAKE + b"".join(talk.script.frames)
    data = data[: len(data) - talk.cut]
    reached[talk.ending.value] += 1
    for tries in range(1, TRIES_MAX + 1):
        left = await converse(served.address, (data,), talk.ending, deadline_s=DEADLINE_S)
        if talk.ending is not Ending.HALF or left.was_reset:
            return
        if left.received.startswith(CAME_LATE) and tries < TRIES_MAX:
            continue
        code, wanted = read_close_code(left.received), talk.script.close_code
        if wanted in (None, code) or tries == TRIES_MAX:
            break
    reached["frames"] += len(talk.script.frames)
    reached[f"closed with {code}"] += 1
    assert wanted in (None, code), f"closed with {code} instead of {wanted}"


def read_close_code(data: bytes) -> int | None:
    """The code of the server's close frame, None without one. Asserts that all before is sound."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 "), head[:200]
    code: int | None = None
    for opcode, payload in FrameReader().feed(rest):
        assert code is None, "a frame after a close frame"
        if opcode == TEXT:
            _check_event(payload)
        elif opcode == CLOSE:
            code = int.from_bytes(payload[:2], "big") if payload else 1000
            assert code in CLOSE_CODES or code in PRIVATE_CODES, payload
        else:
            assert opcode in (PING, PONG), (opcode, payload)
    return code


def _check_event(text: bytes) -> None:
    event = json.loads(text)
    assert isinstance(event["type"], str)
    if event["type"] == "error":
        assert 400 <= event["status"] < 500, event
        assert event["error"]["code"], event
        assert event["error"]["message"], event


# ---- planted faults


async def _serve_without_limits(source: ConnectionSource, application: Application) -> None:
    """Planted: floods are taken as they come."""
    limits = application.settings.limits
    socket = attrs.evolve(limits.socket, idle_frames_burst=10**9, fragments_per_message_max=10**9)
    application.settings = attrs.evolve(
        application.settings, limits=attrs.evolve(limits, socket=socket)
    )
    await serve_connections(source, application)


def _without_close(data: bytes) -> bytes:
    start = data.find(b"\x88")
    return data if data.startswith(b"HTTP") or start < 0 else data[:start]


def _with_a_byte_more(data: bytes) -> bytes:
    return data + b"\x00" if data.startswith(b"\x81") else data


FUZZER = Fuzzer[Talk, Serve](
    name="frames",
    invariant="answers are whole events, a broken rule is closed with its code, nothing is held",
    draw=each(_draw_talk),
    check=check,
    target=serve_connections,
    faults={
        "floods are not limited": _serve_without_limits,
        "close frames are not sent": serve_filtered(_without_close),
        "a byte follows each burst": serve_filtered(_with_a_byte_more),
    },
    round_events=40,
    smoke_rounds=5,
    reaches=frozenset(
        {"reset", "close", "half", *(f"closed with {code}" for code in (1002, 1007, 1008, 1009))}
    ),
)
