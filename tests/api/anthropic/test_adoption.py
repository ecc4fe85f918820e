"""Messages of a frontend that died go on at its successor, streamed and whole."""

import pathlib
from typing import Any

import pytest
import trio

from triolet.api.anthropic.messages_request import read_messages_request
from triolet.api.application import Application
from triolet.api.completions.order import CompletionOrder
from triolet.api.completions.service import Reader
from triolet.api.streams.adoption import LONG_TOKENS

from ..fakes import open_client
from ..lives import cut, open_lives, post, reading_first
from .events import events_of, message_of

TOKENS = 40
BODY: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "max_tokens": TOKENS,
    "temperature": 0.8,
    "messages": [{"role": "user", "content": "hello world"}],
    "runtime": {"seed": 7, "ignore_eos": True},
}
PATH = "/v1/messages"
STREAM = {**BODY, "stream": True}
WHOLE = {**BODY, "max_tokens": LONG_TOKENS}


def make_order(application: Application, body: dict[str, Any]) -> CompletionOrder:
    request = read_messages_request(
        body, model=application.generator.model_name, answer_format=application.answer_format
    )
    return application.completions.order(request, "p", body)


async def take(reader: Reader, frames: int) -> bytes:
    """So many frames at least, or all there are."""
    data = b""
    with trio.fail_after(20):
        while data.count(b"\n\n") < frames and not reader.done.is_set():
            await reader.wait_ready()
            data += reader.take()
    return data


def same_for_all(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "id"}


async def test_a_cut_stream_goes_on_behind_its_last_event(null_folder: pathlib.Path) -> None:
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        order = make_order(before, STREAM)
        async with reading_first(before.completions, order) as reader:
            undisturbed = message_of(events_of(await take(reader, 10**9)))
        order = make_order(before, STREAM)
        async with reading_first(before.completions, order) as reader:
            data = await take(reader, 12)
            position, is_done = reader.position, reader.done.is_set()
            assert not is_done
            async with lives.next() as after:
                same = make_order(after, STREAM)
                same.stream_id = order.stream_id
                opening = reading_first(after.completions, same, position, must_be_begun=True)
                async with opening as resumed:
                    data += await take(resumed, 10**9)
            message = message_of(events_of(data))
    assert message["id"] == order.stream_id
    assert message["usage"]["output_tokens"] == TOKENS
    assert message["usage"].pop("cache_read_input_tokens") >= 0
    undisturbed["usage"].pop("cache_read_input_tokens")
    for each in (message, undisturbed):
        each["usage"].pop("input_tokens")
    assert same_for_all(message) == same_for_all(undisturbed)


@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_one_with_a_key_is_answered_by_the_next_life(
    null_folder: pathlib.Path, body: dict[str, Any]
) -> None:
    async with open_lives(null_folder, window_tokens=8) as lives, lives.first() as before:
        salted = {**body, "runtime": {**BODY["runtime"], "cache_salt": "x"}}
        (undisturbed,) = await post(before, PATH, salted)
        async with cut(lives, before, PATH, body, "k") as (after, message_id):
            answers = await post(after, PATH, body, "k", times=2)
    for answer in answers:
        assert answer.status == 200, answer.body
        assert answer.headers["idempotent-replayed"] == "true"
        message, wanted = [
            message_of(events_of(each.body)) if body.get("stream") else each.json
            for each in (answer, undisturbed)
        ]
        assert message["id"] == message_id
        assert same_for_all(message) == same_for_all(wanted)


async def test_one_is_read_on_behind_any_event_in_this_life_and_the_next(
    null_folder: pathlib.Path,
) -> None:
    async with open_lives(null_folder) as lives, lives.first() as before:
        (answer,) = await post(before, PATH, STREAM, "k")
        frames = answer.body.split(b"\n\n")[:-1]
        ids = [frame.split(b"\n")[0].removeprefix(b"id: ").decode() for frame in frames]
        assert ids[:4] == ["-+1", "-+2", "0", "1"]
        message_id = message_of(events_of(answer.body))["id"]
        path = f"/v1/messages/{message_id}/stream"

        async def check(application: Application) -> None:
            async with open_client(application) as client:
                for place in (0, 1, 2, 9, len(ids) - 2):
                    again = await client.request("GET", path, headers={"last-event-id": ids[place]})
                    assert again.body.split(b"\n\n")[:-1] == frames[place + 1 :]
                wrong = await client.request("GET", f"{path}?starting_after=1+9x")
                assert (wrong.status, wrong.json["error"]["type"]) == (400, "invalid_request_error")
                other = await client.request("GET", path.replace("msg_", "chatcmpl_"))
                assert (other.status, other.json["error"]["type"]) == (404, "not_found_error")

        await check(before)
        async with lives.next() as after:
            await check(after)
