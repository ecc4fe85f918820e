"""A reader that has seen what the journal lost waits until it is computed again."""

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from triolet.api.application import Application
from triolet.api.errors import ApiError
from triolet.api.openai.response_events import Event
from triolet.api.responses.response import Response, ResponseReader
from triolet.api.streams.foreign import StreamBatch
from triolet.runtime.messages import ForeignCall, ForeignVerb

from ..lives import lose_what_follows, open_lives
from ..records import taken
from .test_adoption import begun, run

SEEN = 20


async def see_more(response: Response) -> int:
    """The number of the last event that its reader has seen."""
    with response.reading() as reader, trio.fail_after(20):
        while response.record.token_count < SEEN:
            await reader.wait_ready()
            reader.take(1000)
    return response.record.last_number


@asynccontextmanager
async def lossy(folder: pathlib.Path) -> AsyncIterator[tuple[Application, Response, int]]:
    """The next life, a response that goes on, and a number that it has not reached."""
    opened = open_lives(folder, window_tokens=8)
    async with opened as lives, lives.first() as before, begun(before) as response:
        left = lose_what_follows(lives)
        seen = await see_more(response)
        lives.memory = left
        async with lives.next() as after:
            now = after.responses.store.find(response.response_id, "p")
            assert now.record.last_number < seen
            assert not now.has_ended
            with trio.fail_after(20):
                yield after, now, seen


def numbers_of(events: list[Event]) -> list[int]:
    return [number for event in events if isinstance(number := event["sequence_number"], int)]


async def read_on(application: Application, response: Response, seen: int) -> list[int]:
    """Numbers of events behind this one, to the end."""
    numbers: list[int] = []
    async with application.responses.read(response.response_id, "p", seen) as reader:
        assert isinstance(reader, ResponseReader)
        while not reader.done.is_set():
            await reader.wait_ready()
            numbers += numbers_of(taken(reader))
    return numbers


async def test_events_that_were_lost_come_again_and_are_passed_over(
    null_folder: pathlib.Path,
) -> None:
    async with lossy(null_folder) as (after, response, seen):
        numbers = await read_on(after, response, seen)
        assert numbers == sorted(set(numbers))
        assert numbers[0] > seen
        undisturbed = await run(after)
        assert response.record.text == undisturbed.record.text
        assert response.record.numbers == undisturbed.record.numbers


async def test_another_death_before_it_is_there_again_changes_nothing(
    null_folder: pathlib.Path,
) -> None:
    opened = open_lives(null_folder, window_tokens=8)
    async with opened as lives, lives.first() as before, begun(before) as response:
        left = lose_what_follows(lives)
        seen = await see_more(response)
        lives.memory = left
        async with lives.next(), lives.next() as third:
            assert third.books.journal is not None
            assert third.books.journal.is_whole
            now = third.responses.store.find(response.response_id, "p")
            assert now.record.last_number < seen
            with trio.fail_after(20):
                assert (await read_on(third, now, seen))[0] > seen
        async with lives.next() as fourth:
            assert not fourth.books.may_lack_events(response.response_id), "it is over"


async def test_for_another_frontend_it_is_the_same(null_folder: pathlib.Path) -> None:
    async with lossy(null_folder) as (after, response, seen):
        batch = StreamBatch([], None, is_last=False)
        call = ForeignCall(
            caller=1,
            caller_epoch=1,
            call_id=1,
            frontend=0,
            verb=ForeignVerb.EVENTS,
            response_id=response.response_id,
            principal="p",
            starting_after=seen,
        )
        while not batch.parts:
            batch = await after.carry_out(call)
        assert numbers_of(batch.parts)[0] > seen


async def test_a_number_that_never_comes_is_refused_at_the_end(null_folder: pathlib.Path) -> None:
    async with lossy(null_folder) as (after, response, _):
        with pytest.raises(ApiError, match="is beyond the last event"):
            await read_on(after, response, 10**6)
        assert response.has_ended


async def test_what_another_engine_has_computed_is_not_what_was_seen(
    null_folder: pathlib.Path,
) -> None:
    async with lossy(null_folder) as (after, response, seen):
        response.record.inexact_from = 8
        with pytest.raises(ApiError) as caught:
            await read_on(after, response, seen)
        assert (caught.value.status, caught.value.code) == (410, "events_lost")
        assert await read_on(after, response, 0)


async def test_without_a_loss_a_number_beyond_is_refused_at_once(
    null_folder: pathlib.Path,
) -> None:
    opened = open_lives(null_folder, window_tokens=8)
    async with (
        opened as lives,
        lives.first() as before,
        begun(before) as response,
        lives.next() as after,
    ):
        with pytest.raises(ApiError, match="is beyond the last event"):
            await read_on(after, response, 10**6)
        assert not after.responses.store.find(response.response_id, "p").has_ended
