"""Life of a served stream, whatever its surface: admission, pulls, what leaving does."""

import math
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

import attrs
import pytest
import trio
import trio.testing

from triolet.api.access_log import Generated
from triolet.api.errors import ApiError
from triolet.api.streams.foreign import StreamBatch
from triolet.api.streams.served_stream import (
    BATCH_WAIT_S,
    READERS_MAX,
    Admit,
    Order,
    ServedStream,
    Wake,
)
from triolet.api.streams.stream_reader import StreamReader
from triolet.runtime.errors import NoEngine

from ..records import make_live


@attrs.define(eq=False)
class Place:
    """A cursor: how much of a tally was taken."""

    tally: "Tally"
    taken: int = 0

    @property
    def is_ready(self) -> bool:
        return self.taken < self.tally.pulled

    @property
    def is_done(self) -> bool:
        return self.tally.has_ended and not self.is_ready

    @property
    def position(self) -> int:
        return self.taken

    def is_beyond(self, position: int) -> bool:
        return position > self.tally.pulled and not self.tally.has_ended

    def is_inexact(self, position: int) -> bool:
        inexact_from = self.tally.inexact_from
        return inexact_from is not None and position > inexact_from

    def take(self, size_max: int | None) -> int:
        found = self.tally.pulled - self.taken
        found = found if size_max is None else min(found, size_max)
        self.taken += found
        return found


class TallyReader(StreamReader[Place, int]):
    pass


@attrs.define(eq=False)
class Tally(ServedStream[TallyReader]):
    """A surface without text: it counts what has come."""

    noun: ClassVar[str] = "tally"

    order: Order = attrs.field(factory=lambda: make_live().order)
    refusal: Exception | None = None
    waiting: int = 0
    pulled: int = 0
    ending: str = ""
    inexact_from: int | None = None

    @property
    def has_ended(self) -> bool:
        return bool(self.ending)

    @property
    def names(self) -> dict[str, str]:
        return {}

    def generated(self) -> Generated:
        raise NotImplementedError

    def _take(self) -> None:
        if self.waiting < 0:
            raise ZeroDivisionError
        self.pulled, self.waiting = self.pulled + self.waiting, 0

    def _end_by(self, error: ApiError) -> None:
        self.ending = error.code
        self._note_end()

    def _finish(self) -> None:
        if not self.ending:
            self.ending = "cut"
            self._note_end()

    def put(self, count: int = 1, *, is_end: bool = False) -> None:
        self.waiting += count
        self.on_output(is_end)

    def end(self) -> None:
        self.ending = "well"
        self._note_end()

    def reading(
        self, position: int | None = None, wake: Wake | None = None, *, is_client: bool = True
    ) -> Any:
        return self._attached(TallyReader(self, Place(self, position or 0), wake))

    def batch_parts(self, reader: TallyReader) -> list[int]:
        return [reader.take(2)]

    async def _generate(self, admit: Admit) -> None:
        await trio.lowlevel.checkpoint()
        if self.refusal is not None:
            raise self.refusal
        admit()
        await self._ended.wait()


@attrs.define(eq=False)
class Known:
    """An owner: what it heard."""

    heard: list[str] = attrs.field(factory=list)

    def add(self, stream: Tally) -> None:
        self.heard.append("add")

    def end(self, stream: Tally) -> None:
        self.heard.append(f"end {stream.ending}")

    def handle_left(self, stream: Tally) -> None:
        self.heard.append("left")

    def handle_refused(self, stream: Tally) -> None:
        self.heard.append("refused")


async def test_an_owner_hears_of_admission_end_and_the_last_reader_that_left() -> None:
    tally, owner = Tally(), Known()
    async with trio.open_nursery() as nursery:
        with tally.held():
            await nursery.start(tally.run, owner)
            with tally.reading():
                tally.end()
                await trio.testing.wait_all_tasks_blocked()
                assert owner.heard == ["add", "end well"]
            assert owner.heard == ["add", "end well"], "a caller is to answer with it"
        assert owner.heard == ["add", "end well", "left"]


@pytest.mark.parametrize(("refusal", "status"), [(NoEngine(), 503), (ZeroDivisionError(), 500)])
async def test_one_that_is_refused_is_known_nowhere(
    refusal: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    tally, owner = Tally(refusal=refusal), Known()
    with caplog.at_level("ERROR"), pytest.raises(ApiError) as caught:
        await tally.run(owner)
    assert (caught.value.status, owner.heard) == (status, ["refused"])
    assert [record.getMessage() for record in caplog.records] == (
        [] if status == 503 else ["a tally failed; only it ends"]
    )


async def test_one_whose_time_is_over_before_its_admission_is_known_by_its_end() -> None:
    tally, owner = Tally(), Known()
    tally.cancel("test")
    await tally.run(owner)
    assert owner.heard == ["add", "end cut", "left"]


async def test_readers_are_woken_once_and_the_first_that_takes_pulls_for_all() -> None:
    tally, woken = Tally(), list[TallyReader]()
    with tally.reading() as one, tally.reading(wake=woken.append) as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.wait_ready)
            await trio.testing.wait_all_tasks_blocked()
            tally.put(2)
            tally.put(3)
        assert (tally.pulled, one.is_ready, other.is_ready) == (0, True, True)
        assert woken == [other]
        assert (one.take(), other.take()) == (5, 5)
        tally.put()
        tally.put(is_end=True)
        assert woken == [other] * 3
        tally.end()
        assert (one.take(), one.done.is_set(), other.done.is_set()) == (2, True, False)
        await one.wait_ready()


async def test_the_end_is_pulled_whatever_readers_do() -> None:
    tally = Tally()
    with tally.reading():
        tally.put()
        assert tally.pulled == 0
        tally.put(is_end=True)
        assert tally.pulled == 2


async def test_outputs_are_pulled_without_readers_and_for_those_who_wait_for_the_end() -> None:
    tally = Tally()
    with tally.held():
        tally.put()
        assert tally.pulled == 1
        with tally.reading():
            tally.put()
            assert tally.pulled == 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tally.wait_ended)
                await trio.testing.wait_all_tasks_blocked()
                assert tally.pulled == 2
                tally.put()
                assert tally.pulled == 3
                nursery.cancel_scope.cancel()
            tally.put()
            assert tally.pulled == 3
        assert tally.pulled == 4, "else it would stop at its credit for good"


async def test_a_failure_in_a_pull_is_its_end_alone(caplog: pytest.LogCaptureFixture) -> None:
    tally, owner = Tally(), Known()
    async with trio.open_nursery() as nursery:
        with tally.held(), caplog.at_level("CRITICAL"):
            await nursery.start(tally.run, owner)
            tally.put(-1)
            assert tally.ending == "internal_error"


@pytest.mark.parametrize("way", ["gone", "kept", "background"])
async def test_what_becomes_of_one_that_the_last_reader_leaves(
    way: str, autojump_clock: trio.testing.MockClock
) -> None:
    tally = Tally(order=make_live(background=way == "background").order)
    tally.keep_s = 30.0 * (way == "kept")
    tally.deadline_s = 100
    await trio.sleep(20)
    with tally.held():
        with tally.reading(), tally.reading():
            pass
        assert (tally.scope.deadline, tally.is_cancelled) == (100, False)
    assert tally.is_cancelled == (way == "gone")
    assert tally.scope.deadline == {"gone": 100, "kept": 50, "background": 100}[way]
    await trio.sleep(60)
    with tally.reading():
        assert tally.scope.deadline == 100
    assert tally.scope.deadline == 100, "the request's own deadline comes first"


async def test_readers_are_bounded() -> None:
    tally = Tally()
    assert tally.scope.deadline == math.inf
    with ExitStack() as stack:
        for _ in range(READERS_MAX):
            stack.enter_context(tally.reading())
        with pytest.raises(ApiError) as caught:
            stack.enter_context(tally.reading())
        assert (caught.value.status, caught.value.code) == (429, "too_many_readers")


async def test_cancelled_from_outside_it_is_cut() -> None:
    tally, owner = Tally(), Known()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(tally.run, owner))
        nursery.cancel_scope.cancel()
    assert owner.heard == ["add", "end cut", "left"]


async def test_another_frontend_is_given_what_comes_in_a_moment(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tally = Tally()
    with tally.held():
        assert await tally.next_batch(None, is_lost=False) == StreamBatch([0], 0, is_last=False)
        assert trio.current_time() == BATCH_WAIT_S
        tally.put(3)
        assert await tally.next_batch(0, is_lost=False) == StreamBatch([2], 2, is_last=False)
        tally.end()
        assert await tally.next_batch(2, is_lost=False) == StreamBatch([1], 3, is_last=True)
        assert trio.current_time() == BATCH_WAIT_S


async def test_a_lost_position_is_awaited(autojump_clock: trio.testing.MockClock) -> None:
    tally = Tally()
    with tally.held():
        assert await tally.next_batch(2, is_lost=True) == StreamBatch([], 2, is_last=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tally.catch_up, 2)
            await trio.testing.wait_all_tasks_blocked()
            tally.put(2)
        tally.inexact_from = 1
        await tally.catch_up(1)
        with pytest.raises(ApiError) as caught:
            await tally.catch_up(9)
        assert (caught.value.status, caught.value.code) == (410, "events_lost")
