"""The control channel: messages whole and in order, descriptors never lost, sealed memory."""

import array
import os
import socket
from collections.abc import AsyncIterator

import attrs
import msgspec
import pytest
import trio
import trio.testing

from triolet.transports.codec import CodecLimits, MalformedMessage, MessageTooLarge
from triolet.transports.control.channel import INLINE_BYTES_MAX, ControlChannel
from triolet.transports.control.handshake import Ready
from triolet.transports.control.passed_fds import (
    PASSED_FDS_MAX,
    close_fds,
    read_sealed,
    seal_in_memfd,
)

from ...leaks import no_room_for_descriptors, open_fds


@attrs.frozen
class Order:
    number: int
    payload: bytes = b""


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
    with (
        ControlChannel(sockets[0], sends=[Order], receives=[Report]) as parent,
        ControlChannel(sockets[1], sends=[Report], receives=[Order]) as child,
    ):
        yield parent, child


# A packed frame has 12 bytes of header, the message itself about 20.
@pytest.mark.parametrize(
    "size", [0, INLINE_BYTES_MAX - 50, *range(INLINE_BYTES_MAX - 40, INLINE_BYTES_MAX, 7), 300_000]
)
async def test_messages_of_any_size(pair: Pair, size: int) -> None:
    parent, child = pair
    order = Order(1, os.urandom(size))
    await parent.send(order)
    assert await child.receive() == (order, [])
    await child.send(Report("fine"))
    assert await parent.receive() == (Report("fine"), [])


@pytest.mark.parametrize("size", [0, 100_000])
async def test_descriptors_come_along_in_order(pair: Pair, size: int) -> None:
    parent, child = pair
    pipe = os.pipe()
    await parent.send(Order(1, bytes(size)), pipe)
    _, fds = await child.receive()
    os.write(fds[1], b"through")
    assert os.read(pipe[0], 10) == b"through"
    assert not any(os.get_inheritable(fd) for fd in fds)
    close_fds([*pipe, *fds])


async def test_as_many_descriptors_as_allowed_beside_an_oversize_message(pair: Pair) -> None:
    parent, child = pair
    await parent.send(Order(1, bytes(100_000)), [0] * PASSED_FDS_MAX)
    _, fds = await child.receive()
    assert len(fds) == PASSED_FDS_MAX
    close_fds(fds)
    with pytest.raises(ValueError, match="limit"):
        await parent.send(Order(1), [0] * (PASSED_FDS_MAX + 1))


def _raw(message: object, kind: int = 4) -> bytes:
    body = bytes((kind,)) + msgspec.msgpack.encode(message)
    return b"\0" + (1).to_bytes(4, "little") + len(body).to_bytes(8, "little") + body


@pytest.mark.parametrize(
    "datagram",
    [
        b"x",
        b"\0",
        b"\1",
        b"\1more",
        _raw({"number": "one"}),
        _raw({"number": 1}, kind=99),
        bytes(INLINE_BYTES_MAX + 2),
    ],
    ids=["flag", "no frames", "no memfd", "memfd and more", "type", "kind", "too long"],
)
@pytest.mark.parametrize("fd_count", [0, 3, 140])
async def test_malformed_is_logged_closed_and_passed_by(
    pair: Pair,
    sockets: tuple[socket.socket, socket.socket],
    datagram: bytes,
    fd_count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    parent, child = pair
    before = open_fds()
    rights = array.array("i", [sockets[0].fileno()] * fd_count)
    sockets[0].sendmsg([datagram], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    with pytest.raises(MalformedMessage):
        await child.receive()
    assert open_fds() == before
    assert "a control message was dropped" in caplog.text
    await parent.send(Order(2))
    assert await child.receive() == (Order(2), [])


async def test_a_sender_of_garbage_does_not_fill_the_log(
    pair: Pair,
    sockets: tuple[socket.socket, socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(20):
        sockets[0].send(b"?")
        with pytest.raises(MalformedMessage):
            await pair[1].receive()
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert said == [f"a control message was dropped ({n} so far)" for n in (1, 2, 4, 8, 16)]


async def test_too_many_descriptors_or_an_unsealed_payload_are_malformed(
    pair: Pair, sockets: tuple[socket.socket, socket.socket]
) -> None:
    _, child = pair
    pipe = os.pipe()
    sealed = seal_in_memfd([b"no packed frames"], "test")
    before = open_fds()
    cases = [(_raw({"number": 1}), [0] * 129), (b"\1", [pipe[0], 0]), (b"\1", [sealed, 0])]
    for datagram, fds in cases:
        rights = array.array("i", fds)
        sockets[0].sendmsg([datagram], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        with pytest.raises(MalformedMessage):
            await child.receive()
        assert open_fds() == before
    close_fds([*pipe, sealed])


async def test_a_message_whose_descriptors_find_no_room_is_known(pair: Pair) -> None:
    """Who receives it can say what was lost, though not have it."""
    parent, child = pair
    await parent.send(Order(2), [0, 0])
    with no_room_for_descriptors(), pytest.raises(MalformedMessage) as caught:
        await child.receive()
    assert caught.value.known == Order(2)
    assert "more descriptors" in caught.value.reason


async def test_one_that_finds_no_room_is_sent_when_there_is(
    pair: Pair, autojump_clock: trio.testing.MockClock
) -> None:
    parent, child = pair
    order = Order(1, bytes(100_000))
    async with trio.open_nursery() as nursery:
        with no_room_for_descriptors():
            nursery.start_soon(parent.send_patiently, order)
            await trio.testing.wait_all_tasks_blocked()
        assert await child.receive() == (order, [])


async def test_late_handshake_messages_are_dropped_with_their_descriptors(pair: Pair) -> None:
    parent, child = pair
    before = open_fds()
    await parent.send(Ready(b""), [0])
    await parent.send(Order(3))
    assert await child.receive() == (Order(3), [])
    assert open_fds() == before


async def test_last_words_never_wait(pair: Pair) -> None:
    parent, child = pair
    assert child.send_nowait(Report("one"))
    assert (await parent.receive())[0] == Report("one")
    while child.send_nowait(Report("x" * 1000)):
        pass  # until the socket is full
    parent.close()
    assert not child.send_nowait(Report("two"))


async def test_the_end(pair: Pair) -> None:
    parent, child = pair
    await parent.send(Order(1))
    parent.close()
    parent.close()
    assert await child.receive() == (Order(1), [])
    for _ in range(2):
        with pytest.raises(trio.EndOfChannel):
            await child.receive()
        with pytest.raises(trio.BrokenResourceError):
            await child.send(Report("too late"))
    with pytest.raises(trio.ClosedResourceError):
        await parent.receive()
    with pytest.raises(trio.ClosedResourceError):
        await parent.send(Order(2))


async def test_an_end_with_unread_messages_is_an_end(pair: Pair) -> None:
    """The kernel reports a reset then; for us the peer is simply gone."""
    parent, child = pair
    await child.send(Report("never read"))
    parent.close()
    with pytest.raises(trio.EndOfChannel):
        await child.receive()


async def test_closing_wakes_who_waits(pair: Pair) -> None:
    _, child = pair
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_expect_closed, child)
        await trio.testing.wait_all_tasks_blocked()
        child.close()


async def _expect_closed(channel: ControlChannel) -> None:
    with pytest.raises(trio.ClosedResourceError):
        await channel.receive()


async def test_closed_in_the_burst_of_the_wake_up(pair: Pair) -> None:
    """A child dies, and its owner closes our end before who waits for it has run."""
    ours, theirs = pair
    caught: list[BaseException] = []

    async def receive() -> None:
        try:
            await ours.receive()
        except (trio.ClosedResourceError, trio.EndOfChannel) as error:
            caught.append(error)

    class CloseAtWakeUp(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if task.name.endswith("receive"):  # it is awake, and has not run
                trio.lowlevel.remove_instrument(self)
                ours.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        theirs.close()
        trio.lowlevel.add_instrument(CloseAtWakeUp())
    assert isinstance(caught[0], trio.ClosedResourceError)


async def test_our_own_mistakes_send_nothing(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    limits = CodecLimits(bytes_max=1000)
    with ControlChannel(sockets[0], sends=[Order], limits=limits) as channel:
        with pytest.raises(TypeError, match="Report"):
            await channel.send(Report("not listed"))
        with pytest.raises(MessageTooLarge):
            await channel.send(Order(1, bytes(2000)))
        with pytest.raises(OSError, match="Bad file"):
            await channel.send(Order(1), [987_654])


def test_only_seqpacket_sockets_will_do() -> None:
    left, right = socket.socketpair()
    with left, right, pytest.raises(ValueError, match="SEQPACKET"):
        ControlChannel(left)


def test_closing_goes_on_past_a_closed_one() -> None:
    left, right = os.pipe()
    os.close(left)
    close_fds([left, right])
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(right)


def test_sealed_memory_reads_back_and_cannot_change() -> None:
    fd = seal_in_memfd([b"one", memoryview(b"two"), b""], "test")
    assert read_sealed(fd, 6) == b"onetwo"
    assert read_sealed(fd, 6) == b"onetwo"
    with pytest.raises(PermissionError):
        os.write(fd, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(MalformedMessage, match="limit 5"):
        read_sealed(fd, 5)
    os.close(fd)


def test_nothing_else_passes_for_sealed_memory() -> None:
    pipe = os.pipe()
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    for fd, reason in ((pipe[0], "no memfd"), (loose, "not sealed")):
        with pytest.raises(MalformedMessage, match=reason):
            read_sealed(fd, 100)
    close_fds([*pipe, loose])


def test_sealing_what_cannot_be_written_leaves_nothing_open() -> None:
    before = open_fds()
    with pytest.raises(TypeError):
        seal_in_memfd(["text"], "test")  # type: ignore[list-item]
    assert open_fds() == before
