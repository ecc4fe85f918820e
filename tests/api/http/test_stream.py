"""A late or cancelled write kills the connection; a whole one does not."""

import socket

import pytest
import trio
import trio.testing

from triolet.api.http.stream import PIECE_BYTES, UNSENT_BYTES_MAX, BoundedStream, ReadAhead


def tcp_pair() -> tuple[socket.socket, trio.SocketStream]:
    """A client of loopback, and the server's end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    return client, trio.SocketStream(trio.socket.from_stdlib_socket(accepted))


async def test_a_late_write_aborts(autojump_clock: trio.testing.MockClock) -> None:
    client, server = trio.testing.lockstep_stream_pair()
    stream = BoundedStream(server, write_s=20)
    with pytest.raises(trio.BrokenResourceError, match="20 s"):
        await stream.send_all(b"x")  # it is not read
    assert trio.current_time() == pytest.approx(20)
    assert stream.aborted
    assert await client.receive_some(1) == b"x"  # how much arrived is unknown
    assert await client.receive_some(1) == b""
    await client.aclose()


async def test_a_cancelled_write_aborts() -> None:
    client, server = trio.testing.lockstep_stream_pair()
    stream = BoundedStream(server, write_s=20)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, b"half a frame")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel("the writer was cancelled")
    assert stream.aborted
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"another frame")
    await client.aclose()


async def test_the_deadline_is_of_progress(autojump_clock: trio.testing.MockClock) -> None:
    client, server = trio.testing.lockstep_stream_pair()
    stream = BoundedStream(server, write_s=20)
    data = bytes(3 * PIECE_BYTES)
    received = 0

    async def read_slowly() -> None:
        nonlocal received
        while received < len(data):
            await trio.sleep(15)
            received += len(await client.receive_some(PIECE_BYTES))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_slowly)
        await stream.send_all(data)
    assert trio.current_time() == pytest.approx(45)
    assert not stream.aborted
    await stream.aclose()
    await client.aclose()


async def test_abort_resets_a_socket() -> None:
    client, accepted = tcp_pair()
    stream = BoundedStream(accepted, 20)
    await stream.abort()
    await stream.abort()
    with client, pytest.raises(ConnectionResetError):
        client.recv(1)


async def open_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    left, right = socket.socketpair()
    return tuple(  # type: ignore[return-value]
        trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (left, right)
    )


async def test_the_kernel_does_not_hoard_what_it_has_not_sent() -> None:
    client, server = tcp_pair()
    BoundedStream(server, write_s=20)
    with client:
        option = server.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
        assert option == UNSENT_BYTES_MAX
    await server.aclose()


async def test_a_socket_gets_at_once_what_it_takes_and_the_rest_as_it_can() -> None:
    client, server = await open_pair()
    stream = BoundedStream(server, write_s=20)
    await stream.send_all(b"at once")
    assert await client.receive_some(100) == b"at once"
    data = bytes(range(256)) * 2**13  # more than a socket holds
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        await trio.testing.wait_all_tasks_blocked()
        received += await client.receive_some(2**16)
        assert stream._write_now(memoryview(b"x")) == 0, "nothing overtakes what waits"
        while len(received) < len(data):
            received += await client.receive_some(2**16)
    assert received == data
    await client.aclose()
    await stream.aclose()


async def test_a_lost_socket_is_reported_and_a_cancelled_writer_aborts() -> None:
    client, server = await open_pair()
    stream = BoundedStream(server, write_s=20)
    await client.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"to a client that left")
    assert stream.aborted
    client, server = await open_pair()
    stream = BoundedStream(server, write_s=20)
    with trio.CancelScope() as scope:
        scope.cancel("before the first byte")
        await stream.send_all(b"never")
    assert stream.aborted
    assert await client.receive_some(100) == b""
    await client.aclose()


async def test_reading_and_half_closing_pass_through() -> None:
    client, server = trio.testing.memory_stream_pair()
    stream = BoundedStream(server, write_s=1)
    await client.send_all(b"in")
    assert await stream.receive_some() == b"in"
    await stream.wait_send_all_might_not_block()
    await stream.send_all(b"out")
    await stream.send_eof()
    assert await client.receive_some() == b"out"
    assert await client.receive_some() == b""
    await stream.aclose()
    await client.aclose()


@pytest.mark.parametrize("looks_first", [True, False])
async def test_a_read_of_a_stream_that_others_close_ends(looks_first: bool) -> None:
    client, server = await open_pair()
    stream = BoundedStream(server, write_s=20)

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        if looks_first:
            await trio.testing.wait_all_tasks_blocked()
        await stream.abort()
    await read()
    await client.aclose()


async def test_bytes_that_come_in_the_turn_of_the_close_are_nobodys() -> None:
    client, server = await open_pair()
    stream = BoundedStream(server, write_s=20)
    raised = list[trio.ClosedResourceError]()

    class CloseOnceReadable(trio.abc.Instrument):
        """Closes after the loop has seen the bytes, before the reader runs."""

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if task.name.endswith("read") and not raised:
                server.socket.close()

    async def read() -> None:
        try:
            await stream.receive_some()
        except trio.ClosedResourceError as error:
            raised.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        instrument = CloseOnceReadable()
        trio.lowlevel.add_instrument(instrument)
        await client.send_all(b"late")
    trio.lowlevel.remove_instrument(instrument)
    assert len(raised) == 1
    await client.aclose()


def make(ahead_bytes_max: int = 100) -> tuple[trio.abc.Stream, ReadAhead]:
    client, server = trio.testing.memory_stream_pair()
    return client, ReadAhead(BoundedStream(server, 20), ahead_bytes_max)


async def test_bytes_are_read_before_anybody_asks() -> None:
    client, incoming = make()
    async with incoming.reading():
        await client.send_all(b"abc")
        await trio.testing.wait_all_tasks_blocked()
        assert incoming.buffer == b"abc"
        await client.send_all(b"def")
        assert await incoming.more()
        assert incoming.buffer == b"abcdef"
        await client.aclose()
        assert not await incoming.more()
        assert not await incoming.more()


async def test_what_is_too_much_waits_until_it_is_asked_for() -> None:
    client, incoming = make(ahead_bytes_max=3)
    async with incoming.reading():
        await client.send_all(b"abc")
        await trio.testing.wait_all_tasks_blocked()
        await client.send_all(b"def")
        await trio.testing.wait_all_tasks_blocked()
        assert incoming.buffer == b"abc"
        assert await incoming.more()
        assert incoming.buffer == b"abcdef"


async def test_without_a_reader_the_one_who_asks_reads() -> None:
    client, incoming = make()
    await client.send_all(b"a")
    assert await incoming.more()
    await client.aclose()
    assert not await incoming.more()


async def test_leaving_cancels_who_answers(autojump_clock: trio.testing.MockClock) -> None:
    client, incoming = make()
    async with incoming.reading():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.aclose)
            with trio.CancelScope() as scope:
                incoming.cancel_at_end(scope)
                await trio.sleep(1000)
        assert scope.cancelled_caught
        incoming.cancel_at_end(None)
        with trio.CancelScope() as late:
            incoming.cancel_at_end(late)
            await trio.sleep(1000)
        assert late.cancelled_caught
    assert trio.current_time() < 1


async def test_after_it_stopped_the_stream_is_given_away() -> None:
    client, incoming = make()
    async with incoming.reading():
        await client.send_all(b"ab")
        await trio.testing.wait_all_tasks_blocked()
        await incoming.stop_reading()
        await client.send_all(b"cd")
        assert await incoming.stream.receive_some(10) == b"cd"
        assert incoming.buffer == b"ab"
        await incoming.stop_reading()
