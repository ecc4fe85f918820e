"""Streamed completions of a frontend that died are read on at its successor, behind any frame."""

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from triolet.api.application import Application
from triolet.api.completions.order import CompletionOrder
from triolet.api.completions.service import Reader
from triolet.api.errors import ApiError
from triolet.api.http.access import ANONYMOUS
from triolet.api.openai.chat_requests import read_chat_request
from triolet.api.openai.completion_requests import read_completions_request
from triolet.api.streams.adoption import LONG_TOKENS
from triolet.api.streams.claims import HEADER_NAME
from triolet.runtime.config import ReplaySettings
from triolet.runtime.frontend.adoption import REBUILD_DEATHS_MAX
from triolet.runtime.journal.journal import Journal

from ..chunks import frames_of, said_of
from ..fakes import open_client
from ..lives import (
    Lives,
    added,
    cut,
    lose_what_follows,
    open_lives,
    open_noted,
    post,
    reading_first,
    whole_again,
)

TOKENS = 40
SHARED: dict[str, Any] = {
    "max_tokens": TOKENS,
    "temperature": 0.8,
    "seed": 7,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
CHAT: dict[str, Any] = {**SHARED, "messages": [{"role": "user", "content": "hello world"}]}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {**CHAT, "return_token_ids": True},
    "choices with logprobs": {**CHAT, "n": 3, "logprobs": True, "top_logprobs": 1},
    "stop strings": {**CHAT, "stop": ["never said"]},
    "completions": {**SHARED, "prompt": ["hello", [5, 6, 7]], "n": 2, "echo": True},
}


def make_order(application: Application, body: dict[str, Any]) -> CompletionOrder:
    if body["stream"]:  # else its frames have no ids
        body = {**body, "runtime": {"keep_s": 30}}
    request: Any
    if "messages" in body:
        request = read_chat_request(body, model=application.generator.model_name)
    else:
        request = read_completions_request(body, model=application.generator.model_name)
    return application.completions.order(request, "p", body)


async def take(reader: Reader, frames: list[Any], count: int = 10**9) -> None:
    """So many frames more, or all there are."""
    with trio.fail_after(20):
        while len(frames) < count and not reader.done.is_set():
            await reader.wait_ready()
            frames += frames_of(reader.take())


def same_for_all(frames: list[Any], completion_id: str) -> Any:
    """What they say, but for what differs from run to run."""
    choices, others = said_of(frames)
    for said in choices.values():
        assert said.pop("chunk")["id"] == completion_id
    usage, done = others
    return choices, usage["usage"], done


def journal_of(lives: Lives) -> Journal:
    journal = lives.present.journal
    assert journal is not None
    return journal


async def check_forgotten(application: Application, *asked: str) -> None:
    with pytest.raises(ApiError, match="Streamed completion"):
        async with application.completions.read(*asked):
            pass


@pytest.mark.parametrize("name", BODIES)
async def test_a_cut_stream_is_read_on_behind_its_last_frame(
    null_folder: pathlib.Path, name: str
) -> None:
    body = BODIES[name]
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        whole: list[Any] = []
        order = make_order(before, body)
        async with reading_first(before.completions, order) as reader:
            await take(reader, whole)
        await trio.testing.wait_all_tasks_blocked()
        assert journal_of(lives).streams() == []
        wanted = same_for_all(whole, order.stream_id)
        cut: list[Any] = []
        order = make_order(before, {**body, "cache_salt": "cut"})
        async with reading_first(before.completions, order) as reader:
            await take(reader, cut, 12)
            assert not reader.done.is_set()
            async with lives.next() as after, lives.next() as later:
                assert not after.completions.store._running[order.stream_id].has_ended
                asked = (order.stream_id, "p", cut[-1][0])
                async with later.completions.read(*asked) as resumed:
                    await take(resumed, cut)
                assert same_for_all(cut, order.stream_id) == wanted
                await trio.testing.wait_all_tasks_blocked()
                assert journal_of(lives).streams() == []
                await check_forgotten(later, *asked)


async def test_of_one_whose_second_prompt_is_refused_nothing_is_kept(
    null_folder: pathlib.Path,
) -> None:
    body = {**SHARED, "prompt": ["hello", [5] * 100_000]}
    async with open_lives(null_folder) as lives, lives.first() as before:
        with pytest.raises(ApiError, match="prompt"):
            async with reading_first(before.completions, make_order(before, body)):
                pass
        assert journal_of(lives).streams() == []


async def test_of_one_that_two_lives_died_of_the_error_is_read(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        order = make_order(before, BODIES["chat"])
        frames: list[Any] = []
        async with reading_first(before.completions, order) as reader:
            await take(reader, frames, 3)
            lives.kill()
            for _ in range(REBUILD_DEATHS_MAX):
                lives.term += 1
                open_noted(lives.memory, lives.term).note_rebuilding(order.stream_id)
            asked = (order.stream_id, "p", frames[-1][0])
            async with lives.next() as after, after.completions.read(*asked) as resumed:
                await resumed.wait_ready()
                assert b'"completion_lost"' in resumed.take()
                assert resumed.done.is_set()


async def test_what_was_cut_within_its_admission_is_forgotten(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        order = make_order(before, BODIES["completions"])
        async with reading_first(before.completions, order) as reader:
            await take(reader, [], 3)
            journal_of(lives).forget(order.names[1])
            async with lives.next() as after:
                assert after.completions.store.active == 0
                assert journal_of(lives).streams() == []


# ---- whole answers, and those with a key


def whole_of(body: dict[str, Any]) -> dict[str, Any]:
    whole = {name: value for name, value in body.items() if not name.startswith("stream")}
    return {**whole, "max_tokens": LONG_TOKENS}


def path_of(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def without_id(answer: Any) -> Any:
    read = msgspec.json.decode(msgspec.json.encode(answer))
    return {name: value for name, value in read.items() if name not in ("id", "created")}


@pytest.mark.parametrize("name", BODIES)
async def test_a_whole_answer_is_made_by_the_next_life(
    null_folder: pathlib.Path, name: str
) -> None:
    body = whole_of(BODIES[name])
    async with open_lives(null_folder) as lives, lives.first() as before:
        (undisturbed,) = await post(before, path_of(body), {**body, "cache_salt": "undisturbed"})
        assert undisturbed.status == 200, undisturbed.body
        assert journal_of(lives).streams() == []
        count = added(lives)
        async with cut(lives, before, path_of(body), body) as (after, completion_id):
            with pytest.raises(ApiError, match="Streamed completion"):
                async with whole_again(after.completions, completion_id, "another"):
                    pass
            with trio.fail_after(20):
                async with whole_again(after.completions, completion_id, ANONYMOUS) as whole:
                    answer = whole.whole()
                    assert answer["id"] == completion_id
                    assert without_id(answer) == without_id(undisturbed.json)
            assert added(lives) == 2 * count
            assert journal_of(lives).streams() == []
            with pytest.raises(ApiError, match="Streamed completion"):
                async with whole_again(after.completions, completion_id, ANONYMOUS):
                    pass


async def test_a_short_one_is_not_written_down(null_folder: pathlib.Path) -> None:
    body = {**whole_of(CHAT), "max_tokens": LONG_TOKENS - 1}
    async with (
        open_lives(null_folder) as lives,
        lives.first() as before,
        cut(lives, before, path_of(body), body) as (after, completion_id),
    ):
        assert after.completions.store.active == 0
        with pytest.raises(ApiError, match="Streamed completion"):
            async with whole_again(after.completions, completion_id, ANONYMOUS):
                pass


async def test_a_whole_answer_that_was_not_sent_is_there_again(null_folder: pathlib.Path) -> None:
    body = whole_of(BODIES["chat"])
    async with (
        open_lives(null_folder) as lives,
        lives.first() as before,
        cut(lives, before, path_of(body), body) as (after, completion_id),
    ):
        asked = (completion_id, ANONYMOUS)
        with trio.fail_after(20):
            async with (
                whole_again(after.completions, *asked) as answer,
                lives.next() as later,
                whole_again(later.completions, *asked) as again,
            ):
                assert again.whole() == answer.whole()


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_one_with_a_key_is_answered_by_the_next_life(
    null_folder: pathlib.Path, name: str, stream: bool
) -> None:
    body = BODIES[name] if stream else whole_of(BODIES[name])
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        (undisturbed,) = await post(before, path_of(body), {**body, "cache_salt": "undisturbed"})
        count = added(lives)
        async with cut(lives, before, path_of(body), body, "k") as (after, completion_id):
            answers = await post(after, path_of(body), body, "k", times=2)
            (other,) = await post(after, path_of(body), {**body, "seed": 8}, "k")
            assert other.status == 422
            async with lives.next() as later:
                answers += await post(later, path_of(body), body, "k")
                assert added(lives) == 2 * count
    for answer in answers:
        assert answer.status == 200, answer.body
        assert answer.headers["idempotent-replayed"] == "true"
        if stream:
            found, wanted = frames_of(answer.body), frames_of(undisturbed.body)
            first = next(iter(frames_of(undisturbed.body)))[1]["id"]
            said = same_for_all(list(found), completion_id)
            assert said == same_for_all(list(wanted), first)
        else:
            assert answer.body == answers[0].body
            assert without_id(answer.json) == without_id(undisturbed.json)


async def test_one_that_no_engine_went_on_with_is_no_answer(null_folder: pathlib.Path) -> None:
    """Its client was told to come again, so the next life computes nothing for it."""
    async with open_lives(null_folder) as lives, lives.first() as before:
        replays = lives.bed.client.ledger.replays
        replays.settings = ReplaySettings(replay_wait_s=0.0)
        lives.bed.servers[0].core.start_drain()
        headers = {HEADER_NAME: "k"}
        async with open_client(before) as client:
            answer = await client.request("POST", "/v1/chat/completions", CHAT, headers)
        assert b"engine_draining" in answer.body
        async with lives.next() as after:
            assert not after.completions.store._running
            assert not len(after.completions.store.ended)


# ---- what the machine lost


@asynccontextmanager
async def lossy(
    lives: Lives, before: Application, body: dict[str, Any]
) -> AsyncIterator[tuple[Application, str, list[Any]]]:
    """The next life, of whose journal the end was lost; a completion and frames that were seen."""
    order, seen = make_order(before, {**body, "cache_salt": "cut"}), list[Any]()
    async with reading_first(before.completions, order) as reader:
        await take(reader, seen, 5)
        left = lose_what_follows(lives)
        await take(reader, seen, 12)
        assert not reader.done.is_set()
        lives.memory = left
        async with lives.next() as after:
            yield after, order.stream_id, seen


@pytest.mark.parametrize("name", ["chat", "choices with logprobs", "completions"])
async def test_frames_that_were_lost_come_again_and_are_passed_over(
    null_folder: pathlib.Path, name: str
) -> None:
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        whole: list[Any] = []
        order = make_order(before, BODIES[name])
        async with reading_first(before.completions, order) as reader:
            await take(reader, whole)
        wanted = same_for_all(whole, order.stream_id)
        async with lossy(lives, before, BODIES[name]) as (after, completion_id, seen):
            asked = (completion_id, "p", seen[-1][0])
            with trio.fail_after(20):
                batch = await after.completions._read_batch(*asked)
                assert asked[2] not in [
                    frame[0] for frame in frames_of("".join(batch.parts).encode())
                ]
                async with after.completions.read(*asked) as resumed:
                    await take(resumed, seen)
            assert same_for_all(seen, completion_id) == wanted


async def test_what_another_engine_has_computed_is_not_what_was_seen(
    null_folder: pathlib.Path,
) -> None:
    async with (
        open_lives(null_folder, window_tokens=8) as lives,
        lives.first() as before,
        lossy(lives, before, BODIES["chat"]) as (after, completion_id, seen),
    ):
        (choice,) = after.completions.store._running[completion_id].record.choices
        choice.inexact_from = 2
        with pytest.raises(ApiError, match="was lost with the machine") as caught:
            async with after.completions.read(completion_id, "p", seen[-1][0]):
                pass
        assert caught.value.status == 410
