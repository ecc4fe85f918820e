"""Tool calls in the answers of chat completions: deltas of a stream, or whole messages.

Sans-IO: pieces of text in, JSON objects out. Must not know chunks, usage, or who writes.
"""

import attrs

from ...runtime.text.tool_calls import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    TextPiece,
    ToolCallParser,
    ToolEvent,
)
from ..schema.fields import JsonObject


@attrs.define(eq=False)
class ChatToolCalls:
    """Those of one completion, in all its choices. Ids are a function of the completion's."""

    completion_id: str
    # A call of a named function ends with `stop`, as OpenAI has it.
    is_named: bool = False
    # So many calls at most, of each choice; None: any number.
    calls_max: int | None = None
    _parsers: dict[int, ToolCallParser] = attrs.field(factory=dict, init=False)

    def deltas(self, index: int, text: str, *, is_last: bool) -> list[JsonObject]:
        """What the next piece of a choice adds to its message."""
        parser = self._parsers.setdefault(index, ToolCallParser(self.calls_max))
        events = parser.push(text)
        if is_last:
            events += parser.finish()
        return [delta for event in events if (delta := self._delta(index, event)) is not None]

    def finish_reason(self, index: int, reason: str) -> str:
        """`tool_calls` where the choice has ended with calls."""
        parser = self._parsers.get(index)
        called = parser is not None and parser.count > 0 and not self.is_named
        return "tool_calls" if called and reason == "stop" else reason

    def message(self, index: int, text: str) -> JsonObject:
        """A whole choice's message; its content is null if there are calls alone."""
        said, calls = "", list[JsonObject]()
        for delta in self.deltas(index, text, is_last=True):
            said += str(delta.get("content", ""))
            for part in _calls_in(delta):
                _add_part(calls, part)
        message: JsonObject = {"role": "assistant", "content": said, "refusal": None}
        if calls:
            message |= {"content": said or None, "tool_calls": calls}
        return message

    def _delta(self, index: int, event: ToolEvent) -> JsonObject | None:
        match event:
            case TextPiece(text=text):
                return {"content": text}
            case CallBegun(index=place, name=name):
                function = {"name": name, "arguments": ""}
                call_id = f"call_{index}_{place}_{self.completion_id.rpartition('_')[2]}"
                return _call_delta(place, {"id": call_id, "type": "function"}, function)
            case ArgumentsPiece(index=place, text=text):
                return _call_delta(place, {}, {"arguments": text})
            case CallEnded():
                return None


def _call_delta(place: int, head: dict[str, str], function: dict[str, str]) -> JsonObject:
    return {"tool_calls": [{"index": place, **head, "function": function}]}


def _calls_in(delta: JsonObject) -> list[JsonObject]:
    calls = delta.get("tool_calls", [])
    assert isinstance(calls, list)
    return calls


def _add_part(calls: list[JsonObject], part: JsonObject) -> None:
    if "id" in part:
        calls.append({name: value for name, value in part.items() if name != "index"})
        return
    before, more = calls[-1]["function"], part["function"]
    assert isinstance(before, dict)
    assert isinstance(more, dict)
    calls[-1]["function"] = {**before, "arguments": before["arguments"] + more["arguments"]}
