"""A program for `test_openai_sdk`: drives a server with the unmodified SDK, prints what it saw.

It runs in a process of its own, so that no other event loop or thread comes into the test's.
Usage: python openai_client.py BASE_URL
"""

import json
import sys
from typing import Any

import openai
from openai.lib.responses_websocket import ResponsesWebSocketLimits, ResponsesWebSocketSession

LIMITS = ResponsesWebSocketLimits(
    max_lanes=20,
    max_events_per_lane=10_000,
    max_events=50_000,
    max_bytes_per_lane=2**20,
    max_bytes=2**23,
)
WAIT_S = 60.0


def chat(client: openai.OpenAI) -> dict[str, Any]:
    chunks = list(
        client.chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usage = chunks[-1].usage
    assert usage is not None
    whole = client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "hi"}]
    )
    return {
        "text": text,
        "tokens": usage.completion_tokens,
        "whole": whole.choices[0].message.content,
    }


def completions(client: openai.OpenAI) -> dict[str, Any]:
    chunks = list(
        client.completions.create(
            model="toy",
            prompt=["a", "b"],
            stream=True,
            echo=True,
            stream_options={"include_usage": True},
        )
    )
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    usage = chunks[-1].usage
    assert usage is not None
    whole = client.completions.create(model="toy", prompt=[97, 98], max_tokens=2)
    choice = whole.choices[0]
    return {
        "texts": texts,
        "tokens": usage.total_tokens,
        "whole": [choice.text, choice.finish_reason],
        "request_id": bool(whole._request_id),
    }


def responses(client: openai.OpenAI) -> dict[str, Any]:
    with client.responses.stream(model="toy", input="hi") as stream:
        types = [event.type for event in stream]
        streamed = stream.get_final_response()
    whole = client.responses.create(model="toy", input="hi")
    return {"types": types, "streamed": streamed.output_text, "whole": whole.output_text}


def lanes(client: openai.OpenAI) -> dict[str, Any]:
    texts = {}
    with (
        client.responses.connect() as connection,
        ResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        opened = {name: session.lane(name) for name in ("a", "b", "c", "d")}
        for name, lane in opened.items():
            lane.send({"type": "response.create", "model": "toy", "input": f"lane {name}"})
        for name, lane in opened.items():
            texts[name] = lane.get_final_response(timeout=WAIT_S).output_text
    return texts


def cancel(client: openai.OpenAI) -> dict[str, Any]:
    with client.responses.create(model="toy", input="slow", stream=True) as stream:
        events = iter(stream)
        first = next(events)
        assert first.type == "response.created"
        cancelled = client.responses.cancel(first.response.id)
        last = list(events)[-1]
    with client.responses.connect() as connection:
        connection.send({"type": "response.create", "model": "toy", "input": "slow"})
        created = connection.recv()
        assert created.type == "response.created"
        event: Any = {"type": "response.cancel", "response_id": created.response.id}
        connection.send(event)
        socket_last: Any = connection.recv()
        while socket_last.type != "response.incomplete":
            socket_last = connection.recv()
    return {
        "http": cancelled.status,
        "stream": last.type,
        "socket": socket_last.response.status,
    }


def errors(client: openai.OpenAI) -> dict[str, Any]:
    found = {}
    wrong: dict[str, Any] = {"model": {"model": "other"}, "tools": {"tools": [{"type": "x"}]}}
    for name, body in wrong.items():
        try:
            client.responses.create(input="hi", **{"model": "toy", **body})
        except openai.APIStatusError as error:
            found[name] = [type(error).__name__, error.code, error.param]
    try:
        list(client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "die"}], stream=True
        ))  # fmt: skip
    except openai.APIError as error:
        found["died"] = [type(error).__name__, error.code, None]
    return found


def main() -> None:
    client = openai.OpenAI(base_url=sys.argv[1], api_key="key", max_retries=0, timeout=WAIT_S)
    models = [model.id for model in client.models.list()]
    steps = {
        "chat": chat,
        "completions": completions,
        "responses": responses,
        "lanes": lanes,
        "cancel": cancel,
    }
    seen = {name: step(client) for name, step in steps.items()}
    print(json.dumps({"models": models, **seen, "errors": errors(client)}))  # noqa: T201


if __name__ == "__main__":
    main()
