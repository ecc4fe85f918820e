"""Requests with idempotency keys and their answers outlive their frontend."""

import pathlib
from typing import Any

import attrs
import pytest
import trio

from triolet.api.application import Application
from triolet.api.http.access import ANONYMOUS

from ..fakes import Answer
from ..lives import STORY, TOKENS, added, asking, cut, open_lives, post, under_way

PATH = "/v1/responses"


async def ask(application: Application, key: str = "k", **values: Any) -> Answer:
    (answer,) = await post(application, PATH, {**STORY, **values}, key)
    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_runs_is_answered_by_the_next_life(
    null_folder: pathlib.Path, stream: bool
) -> None:
    async with (
        open_lives(null_folder, window_tokens=8) as lives,
        lives.first() as before,
        cut(lives, before, PATH, {**STORY, "stream": stream}, "k") as (after, _),
    ):
        (response,) = after.responses.store.running()
        with trio.fail_after(20):
            answer = await ask(after, stream=stream)
            again = await ask(after, stream=stream)
        found = list(answer.events())[-1]["response"] if stream else answer.json
        assert found["id"] == response.response_id
        assert found["usage"]["output_tokens"] == TOKENS
        assert answer.headers["idempotent-replayed"] == "true"
        assert stream or again.body == answer.body
        assert added(lives) == 1


async def test_a_whole_answer_is_made_without_a_client(null_folder: pathlib.Path) -> None:
    async with (
        open_lives(null_folder) as lives,
        lives.first() as before,
        cut(lives, before, PATH, {**STORY, "stream": False}, "k") as (after, _),
    ):
        (response,) = after.responses.store.running()
        assert response.keep_s == float("inf")
        with trio.fail_after(20):
            await response.wait_ended()


async def test_answers_and_their_absence_outlive_their_frontend(
    null_folder: pathlib.Path,
) -> None:
    async with open_lives(null_folder) as lives, lives.first() as before:
        with trio.fail_after(20):
            first = await ask(before)
            unstored = await ask(before, key="unstored", store=False)
            gone = await ask(before, key="gone")
            before.responses.store.delete(gone.json["id"], ANONYMOUS)
            async with lives.next() as after:
                assert (await ask(after)).body == first.body
                assert (await ask(after, key="unstored", store=False)).body == unstored.body
                assert (await ask(after, key="gone")).status == 410
                assert (await ask(after, input="another")).status == 422
                assert added(lives) == 3
                assert (await ask(after, key="new")).status == 200


async def test_one_that_cannot_be_read_again_is_a_conflict(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        journal = before.journal
        assert journal is not None
        async with asking(post, before, PATH, {**STORY, "stream": True}, "k") as client:
            await under_way(before.responses)
            (stream,) = journal.streams()
            spoiled = attrs.evolve(stream.admission, body=b'{"values": {}, "before": null}')
            stream._admission = spoiled
            journal.writer.append(stream.snapshot())
            async with lives.next() as after, lives.next() as later:
                client.cancel("its frontend died")
                for application in (after, later):
                    answer = await ask(application, stream=True)
                    assert (answer.status, answer.error["code"]) == (
                        409,
                        "idempotency_answer_lost",
                    )
                assert added(lives) == 1
