"""Good frames are good to wsproto and to the guard; rules that are broken on purpose are broken."""

from random import Random

import pytest
from wsproto.frame_protocol import FrameProtocol

from triolet.api.limits import SocketLimits
from triolet.api.websocket.limits_guard import FrameGuard, FrameViolation
from triolet.fuzz.doubles.websocket_frames import (
    PING,
    TEXT,
    VIOLATIONS,
    draw_script,
    frame,
    read_server_frames,
)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_a_frame_is_read_back(size: int) -> None:
    protocol = FrameProtocol(client=False, extensions=[])
    protocol.receive_bytes(frame(TEXT, b"x" * size, mask=b"abcd"))
    text = "".join(str(part.payload) for part in protocol.received_frames())
    assert text == "x" * size


def violation_of(frames: tuple[bytes, ...]) -> tuple[int, int | None]:
    """Which frame the guard refuses and with what code; None at the end when it refuses none."""
    guard = FrameGuard(SocketLimits())
    for number, data in enumerate(frames):
        try:
            guard.feed(data, 0.0)
        except FrameViolation as violation:
            return number, violation.code
    return len(frames), None


def test_a_script_is_good_up_to_its_end() -> None:
    for seed in range(40):
        script = draw_script(Random(seed), 400)
        place, code = violation_of(script.frames)
        if script.close_code is None:
            assert place >= len(script.frames) - 2
        else:
            assert code == script.close_code


@pytest.mark.parametrize("number", range(len(VIOLATIONS)))
def test_what_breaks_a_rule_breaks_it(number: int) -> None:
    breaking, code = VIOLATIONS[number]
    assert violation_of(breaking(Random(1)))[1] == code


def test_a_servers_frames_are_read() -> None:
    server = FrameProtocol(client=False, extensions=[])
    data = server.send_data("a" * 200) + server.send_data(b"b" * 70000) + server.ping(b"c")
    frames = list(read_server_frames(bytes(data) + b"\x81"))
    assert [len(each.payload) for each in frames] == [200, 70000, 1]
    assert frames[-1].opcode == PING


@pytest.mark.parametrize("data", [b"\xc1\x00", b"\x81\x80abcd", b"\x01\x00"])
def test_what_no_server_of_ours_sends(data: bytes) -> None:
    with pytest.raises(AssertionError):
        list(read_server_frames(data))
