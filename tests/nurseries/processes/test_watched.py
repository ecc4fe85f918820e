"""A watched process: all of it first, then what changed; nothing while there is no viewer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio
import trio.testing

from triolet.nurseries.processes.watched import (
    PERIOD_S,
    Buckets,
    Row,
    RowChanges,
    Watch,
    Watched,
    WatchedProcess,
    spare_rows,
)
from triolet.nurseries.tasks.service import open_service
from triolet.nurseries.tasks.task_tree import ProcessTree


@attrs.define(eq=False)
class Source:
    """Says what it is given, and counts what is asked of it."""

    rows: list[Row] = attrs.field(factory=lambda: [{"place": "a", "pid": 1, "n": 0}])
    begun: int = 0
    looks: int = 0
    samples: int = 0
    is_busy: bool = True
    said: list[dict[str, Any]] = attrs.field(factory=list)

    def begin(self) -> None:
        self.begun += 1

    def sample(self) -> bool:
        self.samples += 1
        return self.is_busy

    async def look(self) -> list[Row]:
        await trio.lowlevel.checkpoint()
        self.looks += 1
        return list(self.rows)

    def series(self, *, is_whole: bool) -> dict[str, Any]:
        return {"whole": True} if is_whole else {}

    async def send(self, message: object) -> None:
        await trio.lowlevel.checkpoint()
        assert isinstance(message, Watched)
        said = msgspec.json.decode(message.text)
        assert said.pop("t") > 0
        self.said.append(said)


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[Source, WatchedProcess]]:
    source = Source()
    process = WatchedProcess(source, source.send)
    async with open_service(process.run, name="watched"):
        yield source, process


async def test_it_says_all_then_what_changed(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (source, process):
        await trio.sleep(10 * PERIOD_S)
        assert (source.looks, source.samples) == (0, 0)
        process.handle_watch(Watch(1))
        await trio.sleep(0.4 * PERIOD_S)
        assert source.said.pop() == {"processes": source.rows, "whole": True}
        await trio.sleep(PERIOD_S)
        assert source.said == []
        source.rows = [{"place": "a", "pid": 1, "n": 1}]
        await trio.sleep(PERIOD_S)
        assert source.said.pop() == {"processes": [{"place": "a", "n": 1}]}
        assert source.samples == 3  # the first period was idle


async def test_an_idle_process_sleeps_from_look_to_look(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with watched() as (source, process):
        source.is_busy = False
        process.handle_watch(Watch(1))
        await trio.sleep(10.5 * PERIOD_S)
        assert (source.looks, source.samples) == (11, 10)


async def test_a_new_number_is_everything_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (source, process):
        process.handle_watch(Watch(1))
        await trio.sleep(1.2 * PERIOD_S)
        process.handle_watch(Watch(2))
        await trio.testing.wait_all_tasks_blocked()
        assert source.said == [{"processes": source.rows, "whole": True}] * 2
        assert source.begun == 1


async def test_without_viewers_it_stops(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (source, process):
        process.handle_watch(Watch(1))
        await trio.sleep(PERIOD_S)
        process.handle_watch(Watch(0))
        await trio.testing.wait_all_tasks_blocked()
        looks, samples = source.looks, source.samples
        await trio.sleep(10 * PERIOD_S)
        assert (source.looks, source.samples) == (looks, samples)
        process.handle_watch(Watch(3))
        await trio.testing.wait_all_tasks_blocked()
        assert source.begun == 2
        assert source.said[-1] == {"processes": source.rows, "whole": True}


def test_changes_are_by_place_and_a_new_process_is_whole() -> None:
    changes = RowChanges()
    one, two = {"place": "a", "pid": 1, "n": 0}, {"place": "b", "pid": 2, "n": 0}
    assert changes.look([one, two]) == {"processes": [one, two]}
    assert changes.look([one, two]) == {}
    assert changes.look([one | {"pid": 3}]) == {"processes": [one | {"pid": 3}], "gone": ["b"]}
    changes.forget()
    assert changes.look([one]) == {"processes": [one]}


def test_buckets_count_what_was_added() -> None:
    buckets = Buckets(10)
    for total in (10, 13, 14):
        buckets.sample(total)
    assert buckets.take() == [0, 3, 1]
    assert buckets.take() == []


def test_spares_take_signals_where_the_root_owns_them() -> None:
    facts = {"phase": "warm", "since": "1.0 s"}
    tree = ProcessTree("spare engine 0", 7, facts, processes=[ProcessTree("worker 0", 8)])
    own, child = spare_rows([tree])
    assert (own["place"], own["parent"], own["facts"]) == (
        "spare engine 0",
        "root",
        {"phase": "warm"},
    )
    assert own["can"] == ["kill", "stop", "continue"]
    assert (child["place"], child["parent"], child["can"]) == (
        "spare engine 0 worker 0",
        "spare engine 0",
        [],
    )
    (engines, _) = spare_rows([tree], "engine 1")
    assert (engines["place"], engines["parent"], engines["can"]) == (
        "engine 1 spare engine 0",
        "engine 1",
        [],
    )
