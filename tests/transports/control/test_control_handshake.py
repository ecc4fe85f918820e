"""The handshake over a real socketpair: the whole way, and each way it can end early."""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.control_handshake import (
    perform_child_handshake,
    perform_parent_handshake,
)
from triolet.transports.control.handshake_messages import (
    HandshakeTimeout,
    Hello,
    PeerLeft,
    PeerRefused,
    Progress,
    Ready,
    StrayPeer,
    WrongKey,
    WrongVersion,
)
from triolet.transports.control.passed_fds import close_fds

from .test_passed_fds import open_fds


@attrs.frozen
class Report:
    text: str


Pair = tuple[ControlChannel, ControlChannel]


@pytest.fixture
async def sockets() -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    before = open_fds()
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right
    assert open_fds() == before


@pytest.fixture
async def pair(sockets: tuple[socket.socket, socket.socket]) -> AsyncIterator[Pair]:
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


async def run_both(
    pair: Pair, child: Callable[[ControlChannel], Awaitable[None]], **parent_options: object
) -> bytes:
    options: dict[str, Any] = {"who": "worker 1", "role": "worker", "boot_timeout_s": 10}
    options.update(parent_options)
    error: Exception | None = None
    result = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child, pair[1])
        try:
            result = await perform_parent_handshake(pair[0], b"settings", **options)
        except Exception as caught:
            error = caught
        nursery.cancel_scope.cancel("the parent has its answer")
    if error is not None:
        raise error
    return result


async def test_the_whole_way(pair: Pair) -> None:
    seen: list[tuple[str, float]] = []
    result = await run_both(
        pair,
        boot,
        pid=os.getpid(),
        fds=[0, 1],
        on_progress=lambda phase, fraction: seen.append((phase, fraction)),
    )
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


async def test_a_child_without_progress_is_named_with_its_phase(
    pair: Pair, autojump_clock: trio.testing.MockClock
) -> None:
    async def hang(channel: ControlChannel) -> None:
        handshake = await perform_child_handshake(channel, "worker")
        await handshake.progress("loading weights", 0.4)
        await trio.sleep_forever()

    with pytest.raises(HandshakeTimeout) as caught:
        await run_both(pair, hang)
    assert str(caught.value) == (
        "worker 1 made no progress for 10 s in the phase: loading weights (40%)"
    )


async def test_noise_neither_ends_nor_prolongs_the_wait(
    pair: Pair,
    sockets: tuple[socket.socket, socket.socket],
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def babble(channel: ControlChannel) -> None:
        while True:
            await channel.send(Ready(epoch=0, payload=b""), [0])
            await sockets_out.send(b"\xffnoise")
            await trio.sleep(0.9)

    sockets_out = trio.socket.from_stdlib_socket(sockets[1])
    started = trio.current_time()
    with pytest.raises(HandshakeTimeout, match=r"sent Ready in the phase.*malformed message"):
        await run_both(pair, babble)
    assert trio.current_time() - started == pytest.approx(10)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"wire_version": 2}, WrongVersion),
        ({"role": "engine"}, StrayPeer),
        ({"pid": 1}, StrayPeer),
        ({"key": b"secret"}, WrongKey),
    ],
)
async def test_the_wrong_child_is_refused_at_once(
    pair: Pair, options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error, match="worker 1"):
        await run_both(pair, boot, **options)


async def test_a_child_that_refuses_says_why_and_waits_for_its_end(pair: Pair) -> None:
    ended: list[str] = []

    async def refuse(channel: ControlChannel) -> None:
        handshake = await perform_child_handshake(channel, "worker")
        assert handshake.booting
        try:
            await handshake.refuse("/m: has no weights")
        finally:
            ended.append("cancelled" if not handshake.booting else "still booting")

    with pytest.raises(PeerRefused, match="worker 1 refused: /m: has no weights"):
        await run_both(pair, refuse)
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
    await child.send(Hello(wire_version=1, role="worker", pid=1))
    child.close()
    with pytest.raises(PeerLeft, match="booting"):
        await perform_parent_handshake(
            parent, b"", who="worker 1", role="worker", boot_timeout_s=10
        )


async def test_a_parent_that_leaves(pair: Pair) -> None:
    parent, child = pair
    parent.close()
    with pytest.raises(PeerLeft, match="the parent"):
        await perform_child_handshake(child, "worker")


async def test_a_child_passes_by_what_is_not_init(
    pair: Pair, sockets: tuple[socket.socket, socket.socket]
) -> None:
    parent, child = pair
    before = open_fds()
    await parent.send(Progress(epoch=0, number=1, phase="", fraction=0), [0])
    sockets[0].send(b"\xffnoise")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(boot, child)
        result = await perform_parent_handshake(
            parent, b"x", who="worker 1", role="worker", boot_timeout_s=10
        )
    assert result == b"limits of x"
    assert open_fds() == before


async def test_what_an_accepted_child_says_beside_its_handshake_is_heard(
    sockets: tuple[socket.socket, socket.socket], autojump_clock: trio.testing.MockClock
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
