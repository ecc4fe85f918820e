"""The boot handshake: its machine by a table, its shells over a real socketpair."""

import math
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import (
    DROPPED_KEPT,
    REASON_CHARACTERS_MAX,
    HandshakeTimeout,
    Hello,
    Init,
    ParentSide,
    ParentState,
    PeerLeft,
    PeerRefused,
    Progress,
    Ready,
    Refused,
    StrayPeer,
    perform_child_handshake,
    perform_parent_handshake,
)
from triolet.transports.control.passed_fds import close_fds

from ...leaks import open_fds

HELLO = Hello("worker", 7)
HALF = Progress("loading", 0.5)
READY = Ready(b"limits")
REFUSED = Refused("/m: has no weights")


def side_after(*messages: object) -> ParentSide:
    side = ParentSide(
        who="worker 1", role="worker", pid=7, init=b"settings", boot_timeout_s=10, started_at=100
    )
    for number, message in enumerate(messages):
        side.handle_message(message, 101 + number)
    return side


def test_the_way_it_should_go() -> None:
    side = side_after()
    assert (side.next_deadline(), side.phase) == (110, "waiting for HELLO")
    assert side.handle_message(HELLO, 101) == Init(b"settings")
    assert (side.next_deadline(), side.phase) == (111, "booting")
    assert side.handle_message(HALF, 105) == HALF
    assert (side.next_deadline(), side.phase) == (115, "loading (50%)")
    assert side.handle_message(READY, 106) == READY
    assert side.handle_timeout(1e9) is None
    assert side.dropped == []


def test_reasons_and_phases_are_bounded() -> None:
    decision = side_after(HELLO).handle_message(Refused("x" * 99_999), 102)
    assert isinstance(decision, PeerRefused)
    assert len(decision.reason) == REASON_CHARACTERS_MAX
    for fraction, seen in [(-1, 0), (2, 1), (math.nan, 0), (0.25, 0.25)]:
        progress = side_after(HELLO).handle_message(Progress("p" * 999, fraction), 102)
        assert progress == Progress("p" * 200, seen)


def test_a_timeout_says_in_which_phase_and_what_came_instead() -> None:
    side = side_after(*[READY] * (DROPPED_KEPT + 5), HELLO)
    side.handle_message(HALF, 115)
    side.handle_dropped("noise")
    assert side.handle_timeout(124.9) is None
    error = side.handle_timeout(125)
    dropped = "; worker 1 sent Ready in the phase: waiting for HELLO" * (DROPPED_KEPT - 1)
    assert str(error) == (
        f"worker 1 made no progress for 10 s in the phase: loading (50%){dropped}; noise"
    )
    assert side.state is ParentState.FAILED


# ---- over a socketpair


@attrs.frozen
class Report:
    text: str


Pair = tuple[ControlChannel, ControlChannel]
Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
async def sockets() -> AsyncIterator[Sockets]:
    before = open_fds()
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right
    assert open_fds() == before


@pytest.fixture
async def pair(sockets: Sockets) -> AsyncIterator[Pair]:
    with ControlChannel(sockets[0]) as parent, ControlChannel(sockets[1]) as child:
        yield parent, child


async def boot(channel: ControlChannel) -> None:
    """A child that boots well."""
    handshake = await perform_child_handshake(channel, "worker")
    try:
        await handshake.progress("loading", 0.5)
        await handshake.ready(b"limits of " + handshake.init)
    finally:
        close_fds(handshake.fds)


async def run_parent(channel: ControlChannel, **options: Any) -> bytes:
    given = {"who": "worker 1", "role": "worker", "pid": os.getpid(), "boot_timeout_s": 10}
    return await perform_parent_handshake(channel, b"settings", **{**given, **options})


async def run_both(
    pair: Pair, child: Callable[[ControlChannel], Awaitable[None]], **options: object
) -> bytes:
    error: Exception | None = None
    result = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child, pair[1])
        try:
            result = await run_parent(pair[0], **options)
        except Exception as caught:
            error = caught
        nursery.cancel_scope.cancel("the parent has its answer")
    if error is not None:
        raise error
    return result


async def test_the_whole_way(pair: Pair) -> None:
    seen: list[tuple[str, float]] = []
    result = await run_both(pair, boot, fds=[0, 1], on_progress=lambda *each: seen.append(each))
    assert result == b"limits of settings"
    assert seen == [("loading", 0.5)]


async def test_each_progress_rearms_the_deadline(
    pair: Pair, autojump_clock: trio.testing.MockClock
) -> None:
    async def boot_slowly(channel: ControlChannel) -> None:
        handshake = await perform_child_handshake(channel, "worker")
        for number in range(5):
            await trio.sleep(9)
            await handshake.progress("loading", number / 5)
        await trio.sleep(9)
        await handshake.ready(b"slow")

    started = trio.current_time()
    assert await run_both(pair, boot_slowly) == b"slow"
    assert trio.current_time() - started == pytest.approx(54)


async def test_noise_neither_ends_nor_prolongs_the_wait(
    pair: Pair, sockets: Sockets, autojump_clock: trio.testing.MockClock
) -> None:
    async def babble(channel: ControlChannel) -> None:
        while True:
            await channel.send(READY, [0])
            await sockets_out.send(b"\xffnoise")
            await trio.sleep(0.9)

    sockets_out = trio.socket.from_stdlib_socket(sockets[1])
    started = trio.current_time()
    with pytest.raises(HandshakeTimeout, match=r"sent Ready in the phase.*malformed message"):
        await run_both(pair, babble)
    assert trio.current_time() - started == pytest.approx(10)


@pytest.mark.parametrize(
    ("options", "found"),
    [({"role": "engine"}, "a process of role 'worker'"), ({"pid": 1}, f"process {os.getpid()}")],
    ids=["role", "pid"],
)
async def test_the_wrong_child_is_refused_at_once(
    pair: Pair, options: dict[str, object], found: str
) -> None:
    with pytest.raises(StrayPeer, match=f"expected worker 1, found {found}"):
        await run_both(pair, boot, **options)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (("/m: has no weights",), "/m: has no weights"),
        (("is bad", "kv_blocks"), "kv_blocks is bad"),
    ],
)
async def test_a_child_that_refuses_says_why_and_waits_for_its_end(
    pair: Pair, refusal: tuple[str, ...], words: str
) -> None:
    ended: list[str] = []

    async def refuse(channel: ControlChannel) -> None:
        handshake = await perform_child_handshake(channel, "worker")
        assert handshake.booting
        try:
            await handshake.refuse(*refusal)
        finally:
            ended.append("cancelled" if not handshake.booting else "still booting")

    with pytest.raises(PeerRefused, match=f"worker 1 refused: {words}") as caught:
        await run_both(pair, refuse)
    assert (caught.value.reason, caught.value.parameter) == (*refusal, "")[:2]
    assert ended == ["cancelled"]


async def test_a_child_that_leaves(pair: Pair) -> None:
    async def leave_early(channel: ControlChannel) -> None:
        channel.close()

    async def leave_later(channel: ControlChannel) -> None:
        handshake = await perform_child_handshake(channel, "worker")
        await handshake.progress("compiling", 0)
        channel.close()

    with pytest.raises(PeerLeft, match=r"worker 1 left in the phase: compiling \(0%\)"):
        await run_both(pair, leave_later)
    with pytest.raises(PeerLeft, match="waiting for HELLO"):
        await run_both(pair, leave_early)


async def test_a_child_that_leaves_before_init(pair: Pair) -> None:
    parent, child = pair
    await child.send(Hello("worker", os.getpid()))
    child.close()
    with pytest.raises(PeerLeft, match="booting"):
        await run_parent(parent)


async def test_a_parent_that_leaves(pair: Pair) -> None:
    parent, child = pair
    parent.close()
    with pytest.raises(PeerLeft, match="the parent"):
        await perform_child_handshake(child, "worker")


async def test_a_child_passes_by_what_is_not_init(pair: Pair, sockets: Sockets) -> None:
    before = open_fds()
    await pair[0].send(HALF, [0])
    sockets[0].send(b"\xffnoise")
    assert await run_both(pair, boot) == b"limits of settings"
    assert open_fds() == before


async def test_what_an_accepted_child_says_beside_its_handshake_is_heard(
    sockets: Sockets, autojump_clock: trio.testing.MockClock
) -> None:
    async def report_and_hang(channel: ControlChannel) -> None:
        await channel.send(Report("too early"), [0])
        handshake = await perform_child_handshake(channel, "worker")
        close_fds(handshake.fds)
        await channel.send(Report("pids"), [0, 1])
        await trio.sleep_forever()

    heard: list[tuple[object, int]] = []

    def hear(message: object, fds: Sequence[int]) -> None:
        heard.append((message, len(fds)))
        close_fds(fds)

    with (
        ControlChannel(sockets[0], receives=[Report]) as parent,
        ControlChannel(sockets[1], sends=[Report]) as child,
        pytest.raises(HandshakeTimeout, match="sent Report in the phase: waiting for HELLO"),
    ):
        await run_both((parent, child), report_and_hang, on_other=hear)
    assert heard == [(Report("pids"), 2)]
