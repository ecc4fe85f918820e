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
from triolet.api.responses.response import Response
from triolet.api.streams.adoption import LONG_TOKENS
from triolet.api.streams.store import StreamStore
from triolet.runtime.frontend.adoption import REBUILD_DEATHS_MAX
from triolet.runtime.journal.reader import read_journal

from ...runtime.scripted_models import scripted_model
from ..lives import STORY, TOKENS, WINDOW_TOKENS, asking, open_lives, open_noted, under_way
from ..records import answered, open_response, taken


def read_request(**values: Any) -> ResponseRequest:
    return read_response_request({**STORY, **values}, model="toy", now=trio.current_time())


async def run(application: Application, **values: Any) -> Response:
    """One to its end."""
    async with open_response(application, read_request(**values), "p") as response:
        with trio.fail_after(20):
            await response.wait_ended()
    return response


def found(store: StreamStore[Response], response_id: str) -> Any:
    return store.find(response_id, "p").record.snapshot()


@asynccontextmanager
async def begun(
    application: Application, request: ResponseRequest | None = None
) -> AsyncIterator[Response]:
    """One that runs, whose reader has taken some."""
    async with open_response(application, request or read_request(), "p") as response:
        with response.reading():
            with trio.fail_after(20):
                while response.record.token_count < WINDOW_TOKENS:
                    response.pull()
                    await trio.lowlevel.checkpoint()
            yield response


def check_same(
    store: StreamStore[Response], before: StreamStore[Response], response_id: str
) -> None:
    assert found(store, response_id) == found(before, response_id)
    response, was = (each.find(response_id, "p") for each in (store, before))
    assert response.record.numbers == was.record.numbers
    assert response.record.last_number == was.record.last_number
    assert response.continued == was.continued


def check_missing(store: StreamStore[Response], response_id: str, principal: str = "p") -> None:
    with pytest.raises(ApiError, match="Response with id"):
        store.find(response_id, principal)


# Its prompt opens the reasoning, which is then forty words long.
OPENED = "{{ messages[-1].content }}<think>"
WORDS = [f"word{place:02} " for place in range(40)]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_reasoning_goes_on_as_reasoning(tmp_path: pathlib.Path, *, has_ended: bool) -> None:
    """The successor knows that the answer began inside of it, though an end keeps no prompt."""
    script = [*WORDS[:30], "</think>", *WORDS[30:]]
    folder = scripted_model(tmp_path / "model", OPENED, script, specials=["<think>", "</think>"])
    engine: dict[str, Any] = {"executor": "native", "kv_blocks": 64}
    async with open_lives(folder, WINDOW_TOKENS, **engine) as lives, lives.first() as before:
        values = {"input": "hi", "temperature": 0, "runtime": {}, "max_output_tokens": 64}
        request = read_response_request(
            values, model="toy", now=trio.current_time(), answer_format=before.answer_format
        )
        async with begun(before, request) as response:
            with trio.fail_after(20):
                if has_ended:
                    await response.wait_ended()
                async with lives.next() as after:
                    kept = after.responses.store.find(response.response_id, "p")
                    assert has_ended or kept.record.token_count < len(WORDS)
                    await kept.wait_ended()
                    whole: Any = kept.whole()
        reasoning, message = whole["output"]
        assert reasoning["content"][0]["text"] == "".join(WORDS[:30]).strip()
        assert message["content"][0]["text"] == "".join(WORDS[30:])
        assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == 31


@asynccontextmanager
async def ended(application: Application, *, is_long: bool) -> AsyncIterator[Response]:
    """One that is not stored, of which its reader has taken nothing."""
    request = read_request(store=False, max_output_tokens=TOKENS if is_long else 4)
    async with open_response(application, request, "p", streaming=is_long) as response:
        with response.reading(), trio.fail_after(20):
            await response.wait_ended()
            yield response


@pytest.mark.parametrize("is_long", [True, False])
async def test_what_is_not_stored_is_found_until_its_reader_has_all(
    null_folder: pathlib.Path, *, is_long: bool
) -> None:
    """But for a short whole answer, which is made again: to write it down would cost more."""
    async with (
        open_lives(null_folder, WINDOW_TOKENS) as lives,
        lives.first() as before,
        ended(before, is_long=is_long) as response,
        lives.next() as after,
    ):
        again = after.responses.store.begun(response.response_id)
        assert (again is not None) == is_long
        assert again is None or again.record.snapshot() == response.record.snapshot()


async def test_what_is_not_stored_is_forgotten_when_its_reader_has_all(
    null_folder: pathlib.Path,
) -> None:
    async with open_lives(null_folder, WINDOW_TOKENS) as lives, lives.first() as before:
        async with ended(before, is_long=True) as response:
            pass
        async with lives.next() as after:
            assert after.responses.store.begun(response.response_id) is None


async def test_what_had_ended_is_what_it_was(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder) as lives, lives.first() as before:
        whole = await run(before)
        also = await run(before, previous_response_id=whole.response_id, input="more")
        gone = await run(before)
        before.responses.store.delete(gone.response_id, "p")
        unstored = await run(before, store=False)
        async with open_response(before, read_request(background=True), "p") as response:
            cancelled = before.responses.store.cancel(response.response_id, "p", "by the test")
            await cancelled.wait_ended()
        async with lives.next() as after, lives.next() as later:
            for store in (after.responses.store, later.responses.store):
                for kept in (whole, also, cancelled):
                    check_same(store, before.responses.store, kept.response_id)
                check_missing(store, gone.response_id)
                check_missing(store, unstored.response_id)
                check_missing(store, whole.response_id, "another")


async def test_tokens_behind_an_end_stay_unseen(null_folder: pathlib.Path) -> None:
    """They may come in while a response ends here, before its engine knows."""
    async with open_lives(null_folder) as lives, lives.first() as before:
        async with begun(before, read_request(background=True)) as response:
            before.responses.store.cancel(response.response_id, "p", "by the test")
            await response.wait_ended()
        journal = before.journal
        assert journal is not None
        (stream,) = read_journal(lives.memory).streams.streams.values()
        stream.choices[0].token_ids.extend([65, 66])
        journal.writer.append(stream.snapshot())
        async with lives.next() as after:
            check_same(after.responses.store, before.responses.store, response.response_id)


async def test_what_was_read_again_is_counted_as_it_was(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder) as lives, lives.first() as before:
        response = await run(before, max_output_tokens=TOKENS)
        async with lives.next() as after:
            unread_bytes = after.responses.store.ended.size_bytes
            adoption = after.responses.store.find(response.response_id, "p").adoption
            assert adoption is not None
            assert not adoption.parts, "all of it is in the record"
            assert (
                unread_bytes
                < after.responses.store.ended.size_bytes
                == before.responses.store.ended.size_bytes
            )
            after.responses.store.check_invariants()


async def test_what_ended_says_from_where_on_tokens_were_others(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder) as lives, lives.first() as before:
        whole = await run(before)
        journal = before.journal
        assert journal is not None
        (stream,) = read_journal(lives.memory).streams.streams.values()
        stream.choices[0].numerics.inexact_from = 2
        journal.writer.append(stream.snapshot())
        async with lives.next() as after:
            assert found(after.responses.store, whole.response_id)["runtime"] == {"inexact_from": 2}


async def test_what_runs_goes_on_and_is_read_behind_any_number(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, WINDOW_TOKENS) as lives, lives.first() as before:
        wanted = await run(before)
        with wanted.reading() as whole:
            events: list[Any] = taken(whole)
        async with begun(before) as response, lives.next() as after:
            kept, rest = after.responses.store.find(response.response_id, "p"), list[Any]()
            assert not kept.has_ended
            assert WINDOW_TOKENS <= kept.record.token_count < TOKENS
            with trio.fail_after(20), kept.reading(8 * 3) as reader:
                while not reader.done.is_set():
                    await reader.wait_ready()
                    rest += taken(reader)
            assert rest[0]["sequence_number"] > 8 * 3
            assert rest[-1]["sequence_number"] == events[-1]["sequence_number"]
            final: Any = kept.record.snapshot()
            undisturbed: Any = wanted.record.snapshot()
            assert final["output"][0]["content"] == undisturbed["output"][0]["content"]
            assert final["usage"]["output_tokens"] == TOKENS


@pytest.mark.parametrize("store", [True, False])
async def test_a_whole_answer_is_made_by_the_next_life(
    null_folder: pathlib.Path, store: bool
) -> None:
    asked = {"max_output_tokens": LONG_TOKENS, "store": store}
    async with open_lives(null_folder) as lives, lives.first() as before:
        wanted = (await run(before, **asked)).whole()

        async def run_whole() -> None:
            async with answered(before.responses, read_request(**asked), "p"):
                pass

        async with asking(run_whole) as client:
            response = await under_way(before.responses)
            async with lives.next() as after:
                client.cancel("its frontend died")
                with pytest.raises(ApiError, match="Response with id"):
                    after.responses.store.find(response.response_id, "another")
                # Twice: it may not have been sent.
                found = [await whole_again(after, response.response_id) for _ in range(2)]
    assert [each["id"] for each in found] == [response.response_id] * 2
    assert [content_of(each) for each in found] == [content_of(wanted)] * 2


async def whole_again(application: Application, response_id: str) -> Any:
    response = application.responses.store.begun(response_id)
    assert response is not None
    with trio.fail_after(20):
        await response.wait_ended()
    return response.whole()


def content_of(response: Any) -> Any:
    return response["output"][0]["content"], response["status"]


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
            lost = found(after.responses.store, response.response_id)
            assert (lost["status"], lost["error"]["code"]) == ("failed", "response_lost")
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
            stream._admission = attrs.evolve(stream.admission, body=body)
            journal.writer.append(stream.snapshot())
            async with lives.next() as after:
                assert found(after.responses.store, good.response_id)["status"] == "incomplete"
                check_missing(after.responses.store, response.response_id)
                with trio.fail_after(20):
                    await lives.bed.wait_quiet()
