"""Responses of a frontend that died are what they were at its successor."""

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from triolet.api.application import Application
from triolet.api.errors import ApiError
from triolet.api.openai.responses_request import ResponseRequest, read_response_request
from triolet.api.responses.adoption import LOST_CODE
from triolet.api.responses.response import Response
from triolet.api.responses.store import ResponseStore
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.frontend.adoption import REBUILD_DEATHS_MAX, adopt_streams
from triolet.runtime.journal.journal import Journal
from triolet.runtime.journal.reader import read_journal
from triolet.runtime.journal.writer import JournalWriter
from triolet.runtime.runtime import Runtime

from ..records import taken

TOKENS = 40
FREE = {"seed": 7, "ignore_eos": True}
STORY: dict[str, Any] = {
    "input": "hello world",
    "max_output_tokens": TOKENS,
    "temperature": 0.8,
    "runtime": {**FREE, "token_ids": True},
    "metadata": {"a": "b"},
}
KEEP_S = 30.0
WINDOW_TOKENS = 8


def open_noted(memory: NotedMemory, term: int) -> Journal:
    contents = read_journal(memory)
    return Journal.resume(JournalWriter.resume(memory, contents, term), contents)


@attrs.define(eq=False)
class Lives:
    """A frontend with its API, and the next ones."""

    bed: Bed
    memory: NotedMemory
    term: int = 1
    present: Application = attrs.field(init=False)

    @asynccontextmanager
    async def first(self) -> AsyncIterator[Application]:
        frontend = self.bed.frontend
        frontend.client.journal = open_noted(self.memory, 1)
        async with self._serve(frontend) as application:
            yield application

    def kill(self) -> None:
        """Nothing comes from the present one any more, and it writes nothing."""
        frontend = self.present.generator
        assert isinstance(frontend, Runtime)
        if frontend.client.journal is not None:
            self.bed.cut_off(frontend)
            frontend.client.journal = self.present.store.journal = None
            self.present.completions.journal = None

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Application]:
        self.kill()
        self.term += 1
        async with self.bed.open_successor(self.term) as frontend:
            journal = frontend.client.journal = open_noted(self.memory, self.term)
            streams = adopt_streams(frontend, journal)
            frontend.client.handle_rebuilt()
            async with self._serve(frontend) as application:
                await application.adopt(streams, KEEP_S)
                for response in application.store.running():
                    until_s = trio.current_time() + KEEP_S + 1
                    assert response.is_keyed or response.scope.deadline < until_s
                yield application

    @asynccontextmanager
    async def _serve(self, frontend: Runtime) -> AsyncIterator[Application]:
        application = self.present = Application(frontend, journal=frontend.client.journal)
        async with open_service(application.responses.run, name="responses"):
            yield application


@asynccontextmanager
async def open_lives(folder: pathlib.Path, window_tokens: int = 256) -> AsyncIterator[Lives]:
    async with open_bed(folder, window_tokens=window_tokens) as bed:
        yield Lives(bed, NotedMemory.fresh(2**20))


def read_request(**values: Any) -> ResponseRequest:
    return read_response_request({**STORY, **values}, model="toy", now=trio.current_time())


async def run(application: Application, **values: Any) -> Response:
    """One to its end."""
    async with application.responses.open(read_request(**values), "p") as response:
        with trio.fail_after(20):
            await response.wait_ended()
    return response


def found(store: ResponseStore, response_id: str) -> Any:
    return store.get(response_id, "p")


@asynccontextmanager
async def begun(application: Application) -> AsyncIterator[Response]:
    """One that runs, whose reader has taken some."""
    async with application.responses.open(read_request(), "p") as response:
        with response.reading():
            with trio.fail_after(20):
                while response.record.token_count < WINDOW_TOKENS:
                    response.pull()
                    await trio.lowlevel.checkpoint()
            yield response


def check_same(store: ResponseStore, before: ResponseStore, response_id: str) -> None:
    assert found(store, response_id) == found(before, response_id)
    record, was = (each.find(response_id, "p").record for each in (store, before))
    assert (record.numbers, record.last_number) == (was.numbers, was.last_number)
    conversation = store.conversation_of(response_id, "p")
    assert conversation == before.conversation_of(response_id, "p")


def check_missing(store: ResponseStore, response_id: str, principal: str = "p") -> None:
    with pytest.raises(ApiError, match="No response"):
        store.find(response_id, principal)


async def test_what_had_ended_is_what_it_was(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder) as lives, lives.first() as before:
        whole = await run(before)
        also = await run(before, previous_response_id=whole.response_id, input="more")
        gone = await run(before)
        before.store.delete(gone.response_id, "p")
        unstored = await run(before, store=False)
        async with before.responses.open(read_request(background=True), "p") as response:
            cancelled = before.store.cancel(response.response_id, "p", "by the test")
            await cancelled.wait_ended()
        async with lives.next() as after, lives.next() as later:
            for store in (after.store, later.store):
                for kept in (whole, also, cancelled):
                    check_same(store, before.store, kept.response_id)
                check_missing(store, gone.response_id)
                check_missing(store, unstored.response_id)
                check_missing(store, whole.response_id, "another")


async def test_what_ended_says_from_where_on_tokens_were_others(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder) as lives, lives.first() as before:
        whole = await run(before)
        journal = before.journal
        assert journal is not None
        (stream,) = journal.streams()
        stream.choices[0].inexact_from = 2
        journal.writer.append(stream.snapshot())
        async with lives.next() as after:
            assert found(after.store, whole.response_id)["runtime"] == {"inexact_from": 2}


async def test_what_runs_goes_on_and_is_read_behind_any_number(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, WINDOW_TOKENS) as lives, lives.first() as before:
        wanted = await run(before)
        with wanted.reading() as whole:
            events: list[Any] = taken(whole)
        async with begun(before) as response, lives.next() as after:
            kept, rest = after.store.find(response.response_id, "p"), list[Any]()
            assert not kept.has_ended
            assert WINDOW_TOKENS <= kept.record.token_count < TOKENS
            with trio.fail_after(20), kept.reading(starting_after=8 * 3) as reader:
                while not reader.done.is_set():
                    await reader.wait_ready()
                    rest += taken(reader)
            assert rest[0]["sequence_number"] > 8 * 3
            assert rest[-1]["sequence_number"] == events[-1]["sequence_number"]
            final: Any = kept.record.snapshot()
            undisturbed: Any = wanted.record.snapshot()
            assert final["output"][0]["content"] == undisturbed["output"][0]["content"]
            assert final["usage"]["output_tokens"] == TOKENS


async def test_one_that_ended_two_lives_fails_by_that(null_folder: pathlib.Path) -> None:
    async with (
        open_lives(null_folder, WINDOW_TOKENS) as lives,
        lives.first() as before,
        begun(before) as response,
    ):
        lives.kill()
        for _ in range(REBUILD_DEATHS_MAX):
            lives.term += 1
            open_noted(lives.memory, lives.term).note_rebuilding(response.response_id)
        async with lives.next() as after:
            lost = found(after.store, response.response_id)
            assert (lost["status"], lost["error"]["code"]) == ("failed", LOST_CODE)
            with trio.fail_after(20):
                await lives.bed.wait_quiet()


async def test_one_that_cannot_be_read_again_ends_alone(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, WINDOW_TOKENS) as lives, lives.first() as before:
        good = await run(before)
        async with begun(before) as response:
            journal = before.journal
            assert journal is not None
            (stream,) = [each for each in journal.streams() if each.said is None]
            body = b'{"values": {}, "before": null}'
            stream.admission = attrs.evolve(stream.admission, body=body)
            journal.writer.append(stream.snapshot())
            async with lives.next() as after:
                assert found(after.store, good.response_id)["status"] == "incomplete"
                check_missing(after.store, response.response_id)
                with trio.fail_after(20):
                    await lives.bed.wait_quiet()
