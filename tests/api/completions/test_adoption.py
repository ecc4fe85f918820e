"""Streamed completions of a frontend that died are read on at its successor, behind any frame."""

import pathlib
from typing import Any

import pytest
import trio

from triolet.api.application import Application
from triolet.api.completions.completion import CompletionReader
from triolet.api.completions.order import CompletionOrder
from triolet.api.completions.service import ForeignCompletionReader
from triolet.api.errors import ApiError
from triolet.api.openai.completion_requests import read_chat_request, read_completions_request
from triolet.runtime.frontend.adoption import REBUILD_DEATHS_MAX
from triolet.runtime.journal.journal import Journal

from ..chunks import frames_of, said_of
from ..responses.test_adoption import Lives, open_lives, open_noted

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
    request: Any
    if "messages" in body:
        request = read_chat_request(body, model=application.generator.model_name)
    else:
        request = read_completions_request(body, model=application.generator.model_name)
    return application.completions.order(request, "p", body)


async def take(
    reader: CompletionReader | ForeignCompletionReader, frames: list[Any], count: int = 10**9
) -> None:
    """So many frames more, or all there are."""
    with trio.fail_after(20):
        while len(frames) < count and not reader.is_done:
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
    journal = lives.present.completions.journal
    assert journal is not None
    return journal


async def check_forgotten(application: Application, *asked: str) -> None:
    with pytest.raises(ApiError, match="No streamed completion"):
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
        async with before.completions.open(order) as reader:
            await take(reader, whole)
        await trio.testing.wait_all_tasks_blocked()
        assert journal_of(lives).streams() == []
        wanted = same_for_all(whole, order.completion_id)
        cut: list[Any] = []
        order = make_order(before, {**body, "cache_salt": "cut"})
        async with before.completions.open(order) as reader:
            await take(reader, cut, 12)
            assert not reader.is_done
            async with lives.next() as after, lives.next() as later:
                assert not after.completions._completions[order.completion_id].record.has_ended
                asked = (order.completion_id, "p", cut[-1][0])
                async with later.completions.read(*asked) as resumed:
                    await take(resumed, cut)
                assert same_for_all(cut, order.completion_id) == wanted
                await trio.testing.wait_all_tasks_blocked()
                assert journal_of(lives).streams() == []
                await check_forgotten(later, *asked)


async def test_of_one_that_two_lives_died_of_the_error_is_read(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        order = make_order(before, BODIES["chat"])
        frames: list[Any] = []
        async with before.completions.open(order) as reader:
            await take(reader, frames, 3)
            lives.kill()
            for _ in range(REBUILD_DEATHS_MAX):
                lives.term += 1
                open_noted(lives.memory, lives.term).note_rebuilding(order.completion_id)
            asked = (order.completion_id, "p", frames[-1][0])
            async with lives.next() as after, after.completions.read(*asked) as resumed:
                await resumed.wait_ready()
                assert b'"completion_lost"' in resumed.take()
                assert resumed.is_done


async def test_what_was_cut_within_its_admission_is_forgotten(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        order = make_order(before, BODIES["completions"])
        async with before.completions.open(order) as reader:
            await take(reader, [], 3)
            journal_of(lives).forget(order.names[1])
            async with lives.next() as after:
                assert after.completions.active == 0
                assert journal_of(lives).streams() == []
