"""Requests with idempotency keys and their answers outlive their frontend."""

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from triolet.api.application import Application
from triolet.api.http.access import ANONYMOUS
from triolet.api.streams.claims import HEADER_NAME

from ..fakes import Answer, open_client
from ..lives import STORY, TOKENS, Lives, asking, open_lives

PATH = "/v1/responses"


async def post(application: Application, key: str = "k", **values: Any) -> Answer:
    async with open_client(application) as client:
        body, headers = {**STORY, **values}, {HEADER_NAME: key}
        return await client.request("POST", PATH, body, headers)


def added(lives: Lives) -> int:
    """Requests that engines took in."""
    return sum(each.core.statistics().requests_added for each in lives.bed.servers.values())


@asynccontextmanager
async def cut(lives: Lives, before: Application, **values: Any) -> AsyncIterator[Application]:
    """The life after one that died with a request under way, of which its client saw nothing."""
    async with asking(partial(post, before, **values)) as client:
        with trio.fail_after(20):
            while not before.responses.store.running():
                await trio.lowlevel.checkpoint()
        async with lives.next() as after:
            client.cancel("its frontend died")
            yield after


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_runs_is_answered_by_the_next_life(
    null_folder: pathlib.Path, stream: bool
) -> None:
    async with (
        open_lives(null_folder, window_tokens=8) as lives,
        lives.first() as before,
        cut(lives, before, stream=stream) as after,
    ):
        (response,) = after.responses.store.running()
        with trio.fail_after(20):
            answer = await post(after, stream=stream)
            again = await post(after, stream=stream)
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
        cut(lives, before, stream=False) as after,
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
            first = await post(before)
            unstored = await post(before, key="unstored", store=False)
            gone = await post(before, key="gone")
            before.responses.store.delete(gone.json["id"], ANONYMOUS)
            async with lives.next() as after:
                assert (await post(after)).body == first.body
                assert (await post(after, key="unstored", store=False)).body == unstored.body
                assert (await post(after, key="gone")).status == 410
                assert (await post(after, input="another")).status == 422
                assert added(lives) == 3
                assert (await post(after, key="new")).status == 200


async def test_one_that_cannot_be_read_again_is_a_conflict(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        journal = before.journal
        assert journal is not None
        async with asking(partial(post, before, stream=True)) as client:
            with trio.fail_after(20):
                while not before.responses.store.running():
                    await trio.lowlevel.checkpoint()
            (stream,) = journal.streams()
            spoiled = attrs.evolve(stream.admission, body=b'{"values": {}, "before": null}')
            stream._admission = spoiled
            journal.writer.append(stream.snapshot())
            async with lives.next() as after, lives.next() as later:
                client.cancel("its frontend died")
                for application in (after, later):
                    answer = await post(application, stream=True)
                    assert (answer.status, answer.error["code"]) == (
                        409,
                        "idempotency_answer_lost",
                    )
                assert added(lives) == 1
