"""What a response with tools has said so far: text and function calls, as items in their order.

Sans-IO: outputs of the engine and one ending in, events out; the face is `ResponseRecord`'s. Which
items there are is known only as the text comes, so events are made once, when their text comes, and
kept for every reader. Numbers grow by one or jump: an event is at least the 8 × k-th where k tokens
had come before it. The bound is the length of the model. Must not know tasks, sockets or policies.
"""

import bisect

import attrs

from ..runtime.generation import GenerationOutput
from ..runtime.tool_calls import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    TextPiece,
    ToolCallParser,
    ToolEvent,
)
from .errors import bad_field
from .fields import JsonObject
from .responses import DELTA, Ending, Event, Part, ResponseEvents, Status

# A token completes few events: the end of one item and the begin of the next are five.
NUMBERS_OF_TOKEN = 8
# One event: a dictionary of five to seven entries, its number and a short text.
EVENT_BYTES = 448
_ARGUMENTS = "response.function_call_arguments"


@attrs.define(eq=False)
class ToolRecord:
    """Everything that one response says. Only one task appends; the order of calls is time."""

    events: ResponseEvents
    # Output tokens so far, those without text included.
    token_count: int = attrs.field(default=0, init=False)
    ending: Ending | None = attrs.field(default=None, init=False)
    # The items so far; the last one may be open.
    items: list[JsonObject] = attrs.field(factory=list, init=False)

    _parser: ToolCallParser = attrs.field(init=False)
    _said: list[Event] = attrs.field(factory=list, init=False)
    _numbers: list[int] = attrs.field(factory=list, init=False)
    _is_open: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._parser = ToolCallParser(self.events.request.tools.calls_max)
        response = self.events.snapshot("in_progress")
        for name in ("created", "in_progress"):
            self._say({"type": f"response.{name}", "response": response})

    @property
    def text(self) -> str:
        """The text outside of calls so far."""
        return "".join(str(item["_text"]) for item in self.items if item["type"] == "message")

    @property
    def calls(self) -> list[JsonObject]:
        """Function calls so far, as items."""
        return [_shown(item) for item in self.items if item["type"] == "function_call"]

    @property
    def token_ids(self) -> list[int] | None:
        """None: ids are not kept beside calls."""
        return None

    @property
    def extra_bytes(self) -> int:
        """About what it takes to keep it, beside what was said: its events."""
        return EVENT_BYTES * len(self._said)

    @property
    def last_number(self) -> int:
        """The number of the last event that there is."""
        return self._numbers[-1]

    @property
    def said(self) -> list[Event]:
        """All events so far."""
        return self._said

    def append(self, output: GenerationOutput) -> None:
        """Note the next piece."""
        assert self.ending is None
        self.token_count = output.token_count
        for event in self._parser.push(output.text):
            self._take(event)

    def add_notice(self, event: Event) -> None:
        """Note what happened to the request."""
        self._said.append({**event, "sequence_number": self.last_number})
        self._numbers.append(self.last_number)

    def end(self, ending: Ending) -> None:
        """Nothing is added any more."""
        assert self.ending is None
        for event in self._parser.finish():
            self._take(event)
        self._close(is_whole=ending.status is Status.COMPLETED)
        self.ending = ending
        self._say({"type": self.events.terminal_type(ending), "response": self.snapshot()})

    def snapshot(self) -> JsonObject:
        """The response object as it is now."""
        if self.ending is None:
            return self.events.snapshot("in_progress")
        output = [_shown(item) for item in self.items]
        return self.events.final_with(self.ending, output, self.token_count)

    def reader(
        self, starting_after: int | None = None, *, with_notices: bool = True
    ) -> "ToolRecordReader":
        """A cursor behind the event of this number; see `ResponseRecord.reader`."""
        after = -1 if starting_after is None else starting_after
        if after < 0 and starting_after is not None:
            raise bad_field("starting_after", "must not be negative")
        if after > self.last_number:
            raise bad_field("starting_after", f"is beyond the last event, {self.last_number}")
        return ToolRecordReader(self, bisect.bisect_right(self._numbers, after), with_notices)

    def check_invariants(self) -> None:
        """For property tests: numbers grow, one item at most is open."""
        assert self._numbers == sorted(self._numbers)
        assert [event["sequence_number"] for event in self._said] == self._numbers
        assert all(item["status"] != "in_progress" for item in self.items[:-1])

    # ---- items

    def _take(self, event: ToolEvent) -> None:
        match event:
            case TextPiece(text=text):
                if not (self._is_open and self.items[-1]["type"] == "message"):
                    self._open_message()
                self._add_text(text)
            case CallBegun(index=index, name=name):
                self._close(is_whole=True)
                self._open_call(index, name)
            case ArgumentsPiece(text=text):
                item = self.items[-1]
                item["arguments"] = str(item["arguments"]) + text
                self._say({"type": f"{_ARGUMENTS}.delta", **self._place(), "delta": text})
            case CallEnded():
                self._close(is_whole=True)

    def _open(self, item: JsonObject) -> None:
        self.items.append(item)
        self._is_open = True
        self._say({"type": "response.output_item.added", "item": _shown(item), **self._index()})

    def _open_message(self) -> None:
        item_id = f"{self.events.identity.item_id}_{len(self.items)}"
        head = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress"}
        self._open({**head, "_text": "", "content": []})
        self._say({"type": "response.content_part.added", **self._content(), "part": _part("")})

    def _open_call(self, index: int, name: str) -> None:
        suffix = f"{index}_{self.events.identity.response_id.removeprefix('resp_')}"
        head = {"id": f"fc_{suffix}", "type": "function_call", "status": "in_progress"}
        self._open({**head, "call_id": f"call_{suffix}", "name": name, "arguments": ""})

    def _add_text(self, text: str) -> None:
        item = self.items[-1]
        item["_text"] = str(item["_text"]) + text
        self._say({"type": DELTA, **self._content(), "delta": text, "logprobs": []})

    def _close(self, *, is_whole: bool) -> None:
        if not self._is_open:
            return
        self._is_open = False
        item = self.items[-1]
        item["status"] = "completed" if is_whole else "incomplete"
        if item["type"] == "message":
            text = str(item["_text"])
            item["content"] = [_part(text)]
            done = {"type": "response.output_text.done", **self._content(), "text": text}
            self._say({**done, "logprobs": []})
            self._say(
                {"type": "response.content_part.done", **self._content(), "part": _part(text)}
            )
        else:
            arguments = {"name": item["name"], "arguments": item["arguments"]}
            self._say({"type": f"{_ARGUMENTS}.done", **self._place(), **arguments})
        self._say({"type": "response.output_item.done", "item": _shown(item), **self._index()})

    def _say(self, event: Event) -> None:
        before = self._numbers[-1] + 1 if self._numbers else 0
        number = max(before, NUMBERS_OF_TOKEN * self.token_count)
        self._said.append({**event, "sequence_number": number})
        self._numbers.append(number)

    def _index(self) -> JsonObject:
        return {"output_index": len(self.items) - 1}

    def _place(self) -> JsonObject:
        return {**self._index(), "item_id": self.items[-1]["id"]}

    def _content(self) -> JsonObject:
        return {**self._place(), "content_index": 0}


def _shown(item: JsonObject) -> JsonObject:
    return {name: value for name, value in item.items() if name != "_text"}


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


@attrs.define(eq=False)
class ToolRecordReader:
    """A cursor in one record: gives every event from `place` on once, in order."""

    record: ToolRecord
    place: int
    with_notices: bool = True
    # Nothing is merged here.
    merged: int = attrs.field(default=0, init=False)

    @property
    def is_done(self) -> bool:
        """Everything up to and with the terminal event was taken."""
        return self.record.ending is not None and self.place == len(self.record.said)

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something now."""
        return self.place < len(self.record.said)

    def take(self, characters_max: int) -> list[Part]:
        """What has been said since, and not much more characters than that."""
        found: list[Part] = []
        size = 0
        while self.is_ready and size < characters_max:
            event = self.record.said[self.place]
            self.place += 1
            if self.with_notices or not str(event["type"]).startswith("runtime."):
                found.append(event)
            size += len(str(event.get("delta", "")))
        return found
