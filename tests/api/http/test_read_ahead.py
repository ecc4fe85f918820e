"""Reading ahead: its bound, the client's leaving, and giving the stream away."""

import trio
import trio.testing

from triolet.api.http.stream import BoundedStream, ReadAhead


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


async def test_after_it_stopped_the_stream_is_somebody_elses() -> None:
    client, incoming = make()
    async with incoming.reading():
        await client.send_all(b"ab")
        await trio.testing.wait_all_tasks_blocked()
        await incoming.stop_reading()
        await client.send_all(b"cd")
        assert await incoming.stream.receive_some(10) == b"cd"
        assert incoming.buffer == b"ab"
        await incoming.stop_reading()
