"""View of a host: events and news for its head, one message at a time, and what is dropped."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import msgspec
import trio
import trio.testing

from triolet.nurseries.processes.watched import Watch
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.events import ChildGone, ChildReady, ChildStarting
from triolet.runtime.fleet.news import WAITING_CHARACTERS_MAX
from triolet.runtime.hosts.host_messages import HostEvent, HostNews
from triolet.runtime.hosts.host_view import (
    EVENTS_MAX,
    MESSAGE_CHARACTERS_MAX,
    HostView,
    messages_of,
)

from ..acting import ActingKernel, Diary, acting_fleet, acting_settings

LINE = "x" * (MESSAGE_CHARACTERS_MAX // 2)


@attrs.define(eq=False)
class Bed:
    """A view of a host with an engine that does not run."""

    sent: list[object] = attrs.field(factory=list)
    is_up: bool = True
    view: HostView = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        fleet = acting_fleet(acting_settings(["ready"]), Diary(), ActingKernel())
        self.view = HostView("host b", fleet.processes, self.send)

    def send(self, message: object) -> bool:
        if self.is_up:
            self.sent.append(message)
        return self.is_up

    def texts(self) -> list[str]:
        return [text for each in self.sent if isinstance(each, HostNews) for text in each.texts]

    async def look(self) -> None:
        """Until a look is over and nothing is left to be done for it."""
        await trio.sleep(0.55)
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def open_bed() -> AsyncIterator[Bed]:
    bed = Bed()
    async with open_service(bed.view.run, name="view"):
        yield bed


def test_messages_are_small_and_lose_nothing() -> None:
    texts = ["a", LINE, LINE, "b", 3 * LINE, "c"]
    messages = list(messages_of(texts))
    assert [text for message in messages for text in message.texts] == texts
    for message in messages:
        size = sum(map(len, message.texts))
        assert size <= MESSAGE_CHARACTERS_MAX or len(message.texts) == 1
    assert list(messages_of([])) == []


async def test_nothing_is_said_before_an_order_nor_after_its_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_bed() as bed:
        await bed.look()
        bed.view.watch.handle_said("{}")
        assert bed.sent == []
        bed.view.handle_order(Watch(1))
        await bed.look()
        first = msgspec.json.decode(bed.texts()[0])
        assert [row["place"] for row in first["processes"]] == ["host b", "engine 0"]
        own, engine = first["processes"]
        assert own.keys() == {"place", "pid", "tasks", "cpu", "memory"}, "its head says the rest"
        assert engine["parent"] == "host b"
        bed.view.handle_order(Watch(0))
        await bed.look()
        assert not bed.view.watch.is_watched
        bed.sent.clear()
        bed.view.watch.handle_said("{}")
        await bed.look()
        assert bed.sent == []


async def test_another_order_begins_anew(autojump_clock: trio.testing.MockClock) -> None:
    async with open_bed() as bed:
        for number in (1, 2):
            bed.view.handle_order(Watch(number))
            await bed.look()
            assert len(bed.sent) == number, "though none was taken"
            assert msgspec.json.decode(bed.texts()[-1])["processes"]


async def test_a_message_follows_when_the_one_before_was_taken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_bed() as bed:
        bed.view.handle_order(Watch(1))
        await bed.look()
        for text in ("first", "second"):
            bed.view.watch.handle_said(text)
            await bed.look()
        assert len(bed.sent) == 1
        bed.view.handle_taken()
        await bed.look()
        assert len(bed.sent) == 2
        assert {"first", "second"} <= set(bed.texts())


async def test_what_waits_for_too_long_is_dropped_counted_and_said_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_bed() as bed:
        bed.view.handle_order(Watch(1))
        await bed.look()
        lines = 1 + WAITING_CHARACTERS_MAX // len(LINE)
        for _ in range(lines):
            bed.view.watch.handle_said(LINE)
            await bed.look()
        bed.view.handle_taken()
        await bed.look()
        await bed.look()
        assert bed.texts().count(LINE) == 0
        assert "processes" in msgspec.json.decode(bed.texts()[-1])
        bed.view.handle_taken()
        bed.view.watch.handle_said("{}")
        await bed.look()
        bed.view.handle_taken()
        await bed.look()
        assert bed.view.dropped >= lines
        assert bed.view.figures(0.0).dropped == bed.view.dropped


async def test_a_link_that_is_down_costs_its_news_and_no_event() -> None:
    bed = Bed(is_up=False)
    died, ready = ChildGone("engine 4", 9, "was killed"), ChildReady("engine 4", 10, 0.5)
    for event in (ChildStarting("engine 4", 9), died, ready):
        bed.view.handle_event(event)
    bed.view.tell_events()
    assert (bed.sent, bed.view.dropped) == ([], 0)
    bed.is_up = True
    bed.view.tell_events()
    assert bed.sent == [
        HostEvent("engine 4: was killed", True, "engine 4", 9, "died", "was killed"),
        HostEvent(
            "engine 4: ready after 0.5 s (epoch 10)", False, "engine 4", 10, "ready", "after 0.5 s"
        ),
    ]


async def test_events_that_wait_are_bounded_and_those_that_are_lost_counted() -> None:
    bed = Bed(is_up=False)
    for epoch in range(EVENTS_MAX + 3):
        bed.view.handle_event(ChildGone("engine 4", epoch, "was killed"))
    assert bed.view.dropped == 3
    bed.is_up = True
    bed.view.tell_events()
    assert len(bed.sent) == EVENTS_MAX
