"""The drain, and the counts of connections."""

from functools import partial

import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.connection_shares import LOCAL, MemoryBudget
from triolet.api.errors import ApiError
from triolet.api.http.held import FixedState, HeldStream
from triolet.api.http.stream import BoundedStream
from triolet.api.settings import ServerLimits, ServeSettings
from triolet.transports.takeover.memory import SLOT_BYTES
from triolet.transports.takeover.slot import ConnectionSlot

from .fakes import FakeGenerator, Say, make_application
from .websocket.socket_client import open_socket


async def test_a_drain_waits_then_cuts(autojump_clock: trio.testing.MockClock) -> None:
    application = Application(FakeGenerator())
    ended: list[tuple[str, float]] = []

    async def connect(name: str, seconds: float) -> None:
        with application.connection():
            await trio.sleep(seconds)
        ended.append((name, trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect, "short", 3)
        nursery.start_soon(connect, "long", 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert application.counters.connections_active == 2
        application.check_accepting()
        await application.drain(10)
        assert application.is_draining
        with pytest.raises(ApiError, match="draining"):
            application.check_accepting()
    assert [name for name, _ in ended] == ["short", "long"]
    assert [at_s for _, at_s in ended] == pytest.approx([3, 11])
    assert application.counters.connections_active == 0
    assert application.counters.connections == 2


async def stay_connected(application: Application) -> None:
    with application.connection():
        await trio.sleep(1000)


async def test_a_drain_that_hands_over_cuts_nothing_unless_another_one_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = Application(FakeGenerator())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stay_connected, application)
        nursery.start_soon(partial(application.drain, 10, hands_over=True))
        await trio.sleep(900)
        assert application.counters.connections_active == 1
        await application.drain(10)
    assert trio.current_time() == pytest.approx(900)


async def test_a_drain_that_hands_over_leaves_a_socket_what_outstays_the_grace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application(FakeGenerator([Say("a"), Say("b", after_s=50)]))
    async with trio.open_nursery() as nursery, open_socket(application) as client:
        await client.create("hi", "a", runtime={"events": True})
        await client.receive_until("response.output_text.delta")
        nursery.start_soon(partial(application.drain, 10, hands_over=True))
        assert (await client.receive_until("runtime.draining"))[-1]["deadline_ms"] == 10_000
        assert (await client.finish())["type"] == "response.completed"
        assert trio.current_time() == pytest.approx(50)
        assert await client.close_code() == 1012


async def test_a_process_hands_over_when_all_connections_are_held(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = Application(FakeGenerator())
    stream = BoundedStream(trio.testing.memory_stream_pair()[0], 1)
    slot = ConnectionSlot(memoryview(bytearray(SLOT_BYTES)))
    held = stream.held = HeldStream(slot, MemoryBudget(), FixedState(b"state"))
    await application.wait_held()  # as there are none
    async with trio.open_nursery() as nursery:
        with application.connection(stream=stream):
            await application.wait_held()
            held.refuse()
            nursery.start_soon(application.wait_held, name="waits")
            with application.connection():
                await trio.sleep(5)
                held.publish(b"the answer")
                await trio.sleep(5)
                assert len(nursery.child_tasks) == 1
    assert trio.current_time() == pytest.approx(10, abs=0.1)


async def test_a_second_drain_may_shorten_the_grace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = Application(FakeGenerator())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stay_connected, application)
        nursery.start_soon(application.drain, 500)
        await trio.testing.wait_all_tasks_blocked()
        await application.drain(1)
    assert trio.current_time() < 5


async def test_idle_waits_end_when_a_drain_begins(autojump_clock: trio.testing.MockClock) -> None:
    application = Application(FakeGenerator())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(application.drain, 10)
        with trio.CancelScope() as scope, application.idle(scope, 75):
            await trio.sleep(1000)
        with trio.CancelScope() as scope, application.idle(scope, 75):
            await trio.sleep(1000)
    assert trio.current_time() < 1


async def test_the_number_of_connections_is_bounded_in_all_and_of_each_address_elsewhere() -> None:
    limits = ServerLimits(connections_max=4, connections_per_address_max=1)
    application = Application(FakeGenerator(), ServeSettings(limits=limits))
    with application.connection(LOCAL), application.connection(LOCAL):
        with application.connection("a"):
            found = [application.is_full(address) for address in ("a", "b", LOCAL)]
            assert found == [True, False, False]
        with application.connection("b"), application.connection("c"):
            assert application.is_full(LOCAL)
        assert not application.is_full("a")
    assert not application._by_address


def test_unusable_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Application(FakeGenerator(), ServeSettings(api_keys=("",)))
    assert "secret" not in repr(ServeSettings(api_keys=("secret",)))
