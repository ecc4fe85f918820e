"""Events of streamed messages: their grammar, and the message that they add up to."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}


def events_of(data: bytes) -> Iterator[dict[str, Any]]:
    """Each frame has the name of its event, and maybe an id."""
    assert data.endswith(b"\n\n") or not data
    for frame in data.decode().removesuffix("\n\n").split("\n\n") if data else ():
        *numbers, name, line = frame.split("\n")
        assert all(number.startswith("id: ") for number in numbers)
        event = json.loads(line.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        yield event


def _input_of(text: str) -> Any:
    """The text itself where the call was cut."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def message_of(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What a whole stream adds up to; it must be in order."""
    found = [event for event in events if event["type"] != "ping"]
    message = found[0].pop("message")
    assert [found[0]["type"], found[-1]["type"]] == ["message_start", "message_stop"]
    assert found[-2]["type"] == "message_delta"
    assert (message["content"], message["stop_reason"]) == ([], None)
    content: list[dict[str, Any]] = message["content"]
    is_open = False
    for event in found[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert (is_open, event["index"]) == (False, len(content))
                is_open = True
                content.append(event["content_block"])
            case "content_block_delta":
                assert (is_open, event["index"]) == (True, len(content) - 1)
                block, delta = content[-1], event["delta"]
                assert delta.pop("type") in DELTAS[block["type"]]
                for name, piece in delta.items():
                    block[name] = block.get(name, "") + piece
            case "content_block_stop":
                assert (is_open, event["index"]) == (True, len(content) - 1)
                is_open = False
                if content[-1]["type"] == "tool_use":
                    content[-1]["input"] = _input_of(content[-1].pop("partial_json", "{}"))
            case other:
                raise AssertionError(other)
    assert not is_open
    end = found[-2]
    return {**message, **end["delta"], "usage": end["usage"]}
