"""Frontends show the sum of what all of them count, copy it now and then, and sleep when idle."""

from collections.abc import Iterator

import attrs
import pytest
import trio
import trio.testing

from triolet.api.counters import ApiCounters
from triolet.api.totals import PERIOD_S, Totals
from triolet.nurseries.processes.counter_page import CounterMemory, open_counter_memory
from triolet.nurseries.tasks.service import ServiceEnded
from triolet.runtime.frontend.health import FrontendStatistics, RuntimeStatistics

from ..live_tasks import find_background_task
from .fakes import FakeGenerator


@attrs.define(eq=False)
class CountingGenerator(FakeGenerator):
    """Has so many requests in flight, and counts how often it was asked."""

    requests_active: int = 0
    finished: int = 0
    looks: int = 0

    def statistics(self) -> RuntimeStatistics:
        self.looks += 1
        frontend = FrontendStatistics(
            requests_active=self.requests_active, requests_finished_total=self.finished
        )
        return RuntimeStatistics(frontend=frontend)


@pytest.fixture
def memory() -> Iterator[CounterMemory]:
    with open_counter_memory(2) as memory:
        yield memory


def make_totals() -> tuple[Totals, CountingGenerator, ApiCounters]:
    generator, counters = CountingGenerator(), ApiCounters()
    return Totals(generator, counters), generator, counters


async def test_alone_it_shows_its_own() -> None:
    totals, generator, counters = make_totals()
    async with totals.open_page(None, 0):
        generator.finished, counters.connections = 3, 2
        shown = totals.look()
        assert (shown.runtime.requests_finished_total, shown.edge.connections) == (3, 2)


async def test_all_show_the_same_sum(memory: CounterMemory) -> None:
    (first, generator, counters), (second, other, _) = make_totals(), make_totals()
    async with first.open_page(memory.fd, 0), second.open_page(memory.fd, 1):
        generator.finished, counters.connections_active = 3, 2
        counters.answers["GET", "/live", 200] += 1
        other.finished, other.requests_active = 4, 1
        for one in (first, second, first):
            shown = one.look()
        assert shown.runtime == second.look().runtime
        assert shown.runtime.requests_finished_total == 7
        assert shown.runtime.requests_active == 1
        assert shown.edge.connections_active == 2
        assert second.look().edge.answers == {("GET", "/live", 200): 1}


async def test_one_of_all_is_the_first(memory: CounterMemory) -> None:
    (alone, _, _), (first, _, _), (second, _, _) = (make_totals() for _ in range(3))
    assert alone.is_first()
    async with second.open_page(memory.fd, 1):
        assert second.is_first()
        async with first.open_page(memory.fd, 0):
            assert first.is_first()
            assert not second.is_first()
        assert second.is_first()


async def test_what_is_counted_last_is_in_the_successors_sum(memory: CounterMemory) -> None:
    totals, generator, counters = make_totals()
    async with totals.open_page(memory.fd, 0):
        generator.finished, generator.requests_active, counters.connections_active = 3, 1, 1
    assert totals.look().runtime.requests_finished_total == 3
    successor, generator, _ = make_totals()
    async with successor.open_page(memory.fd, 0):
        generator.finished = 1
        assert successor.look().runtime.requests_finished_total == 4
        assert successor.look().edge.connections_active == 0


async def test_copies_are_made_in_time_and_an_idle_frontend_sleeps(
    memory: CounterMemory, autojump_clock: trio.testing.MockClock
) -> None:
    totals, generator, counters = make_totals()
    observer, _, _ = make_totals()
    async with totals.open_page(memory.fd, 0), observer.open_page(memory.fd, 1):
        await trio.testing.wait_all_tasks_blocked()
        looks = generator.looks
        await trio.sleep(3600)
        assert generator.looks == looks, "an idle frontend sleeps"

        counters.connections = 1
        totals.changes.notify()
        await trio.testing.wait_all_tasks_blocked()
        assert observer.look().edge.connections == 1, "the first change is copied at once"

        counters.connections = 2
        totals.changes.notify()
        await trio.testing.wait_all_tasks_blocked()
        assert observer.look().edge.connections == 1
        await trio.sleep(2 * PERIOD_S)
        assert observer.look().edge.connections == 2

        generator.requests_active = 1
        totals.changes.notify()
        for finished in range(1, 4):  # nothing says that it changed
            generator.finished = finished
            await trio.sleep(1.5 * PERIOD_S)
            assert observer.look().runtime.requests_finished_total == finished
        generator.requests_active = 0
        await trio.sleep(3 * PERIOD_S)
        looks = generator.looks
        await trio.sleep(3600)
        assert generator.looks == looks


async def test_without_the_task_that_copies_there_is_no_frontend(memory: CounterMemory) -> None:
    async def count() -> None:
        async with make_totals()[0].open_page(memory.fd, 0):
            find_background_task("counters").cancel("the test cancels it")
            await trio.sleep_forever()

    with pytest.raises(ServiceEnded, match="counters"):
        await count()


async def test_a_descriptor_that_is_no_page_is_refused(memory: CounterMemory) -> None:
    totals, _, _ = make_totals()
    with pytest.raises(ValueError, match="no place 2"):
        async with totals.open_page(memory.fd, 2):
            pytest.fail("it has two places")
