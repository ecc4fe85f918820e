"""Reports go out when something changed, merged, and never otherwise."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from triolet.api.frontend_process import LOAD_PERIOD_S, LoadReports
from triolet.nurseries.tasks.background import start_background_task
from triolet.runtime.messages import FrontendLoad

Clock = trio.testing.MockClock
IDLE = FrontendLoad(0, 0, 0)


@attrs.define(eq=False)
class Desk:
    """A count that the test changes, and what the root was told when."""

    streams: int = 0
    told: list[tuple[float, int]] = attrs.field(factory=list)
    looks: int = 0
    began_s: float = attrs.field(factory=trio.current_time)
    reports: LoadReports = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reports = LoadReports(self.look, self.send)

    def look(self) -> FrontendLoad:
        self.looks += 1
        return attrs.evolve(IDLE, open_streams=self.streams)

    async def send(self, load: FrontendLoad) -> None:
        self.told.append((round(trio.current_time() - self.began_s, 6), load.open_streams))
        await trio.lowlevel.checkpoint()

    def set(self, streams: int) -> None:
        self.streams = streams
        self.reports.changed()


@asynccontextmanager
async def open_desk() -> AsyncIterator[Desk]:
    desk = Desk()
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, desk.reports.run, name="load-reports")
        yield desk
        nursery.cancel_scope.cancel("the test is over")


async def test_the_first_report_goes_out_at_once(autojump_clock: Clock) -> None:
    async with open_desk() as desk:
        await trio.sleep(1)
        assert desk.told == [(0, 0)]


async def test_a_burst_is_one_report_and_the_last_count_is_told(autojump_clock: Clock) -> None:
    async with open_desk() as desk:
        await trio.sleep(LOAD_PERIOD_S / 2)
        for streams in (1, 2, 3):
            desk.set(streams)
        await trio.sleep(1)
        assert desk.told == [(0, 0), (LOAD_PERIOD_S, 3)]


async def test_a_change_while_a_report_is_sent_is_not_lost(autojump_clock: Clock) -> None:
    async with open_desk() as desk:
        await trio.sleep(1)
        desk.set(1)
        while len(desk.told) < 2:
            await trio.lowlevel.checkpoint()
        desk.set(2)
        await trio.sleep(1)
        assert desk.told == [(0, 0), (1, 1), (1 + LOAD_PERIOD_S, 2)]


async def test_a_change_that_is_taken_back_is_not_told(autojump_clock: Clock) -> None:
    async with open_desk() as desk:
        await trio.sleep(1)
        desk.set(5)
        desk.set(0)
        await trio.sleep(1)
        assert desk.told == [(0, 0)]


async def test_an_idle_frontend_sleeps(autojump_clock: Clock) -> None:
    async with open_desk() as desk:
        await trio.sleep(1)
        looks = desk.looks
        await trio.sleep(3600)
        assert desk.looks == looks
