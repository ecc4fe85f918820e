"""Frames of streamed completions: apart, and all that they say together."""

from collections.abc import Iterator
from typing import Any

import msgspec


def frames_of(data: bytes) -> Iterator[tuple[str, Any]]:
    for frame in data.decode().removesuffix("\n\n").split("\n\n") if data else ():
        *head, text = frame.split("\n")
        text = text.removeprefix("data: ")
        read = text if text == "[DONE]" else msgspec.json.decode(text)
        yield "".join(head).removeprefix("id: "), read


def said_of(frames: list[tuple[str, Any]]) -> Any:
    """All of them, whatever was merged: of each choice what it says, then the other chunks."""
    choices: dict[int, dict[Any, Any]] = {}
    others = []
    for _, chunk in frames:
        if chunk == "[DONE]" or not chunk["choices"]:
            others.append(chunk)
            continue
        (choice,) = chunk.pop("choices")
        said = choices.setdefault(choice.pop("index"), {"heads": []})
        assert said.setdefault("chunk", chunk) == chunk or "prompt_token_ids" in said["chunk"]
        delta = choice.pop("delta", {})
        for call in delta.pop("tool_calls", []):
            place = said.setdefault(("call", call["index"]), {"heads": [], "arguments": ""})
            place["arguments"] += call["function"].pop("arguments")
            place["heads"] += [call] if "id" in call else []
        reasoning = delta.pop("reasoning", "")
        assert delta.pop("reasoning_content", "") == reasoning
        said["reasoning"] = said.get("reasoning", "") + reasoning
        said["text"] = said.get("text", "") + delta.pop("content", "") + choice.pop("text", "")
        for name, column in (choice.pop("logprobs") or {}).items():
            said[name] = said.get(name, []) + (column or [])
        said["ids"] = said.get("ids", []) + choice.pop("token_ids", [])
        said["heads"] += [delta] if delta else []
        reason = choice.pop("finish_reason")
        stop = choice.pop("stop_reason", None)
        said["heads"] += [(reason, stop)] if reason else []
        said["rest"] = [*said.get("rest", []), *([choice] if choice else [])]
    return choices, others


def as_bytes(frames: list[tuple[str, Any]]) -> bytes:
    """Again, as their chunks are taken apart when they are read."""
    lines = [
        b"id: %b\ndata: %b\n\n"
        % (number.encode(), b"[DONE]" if chunk == "[DONE]" else as_json(chunk))
        for number, chunk in frames
    ]
    return b"".join(lines)


def as_json(chunk: Any) -> bytes:
    return msgspec.json.encode(chunk)
