"""What a response with tools has said so far: text and function calls, as items in their order.

Sans-IO: outputs of the engine and one ending in, events out; the face is `ResponseRecord`'s. Which
items there are is known only as the text comes, so events are made once, when their text comes, and
kept for every reader; deltas that wait for one are merged. Numbers grow by one or jump: an event is
at least the 8 × k-th where k tokens had come before it.

Ids and logprobs of tokens, for those who asked, are told by the next delta, whatever of its text
they are; those behind the last delta by the terminal event. The bound is the length of the model.
Must not know tasks, sockets or policies.
"""

import bisect
from array import array
from typing import Any

import attrs

from ...runtime.frontend.generation import GenerationOutput, Logprobs
from ...runtime.text.logprobs import join
from ...runtime.text.tool_calls import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    TextPiece,
    ToolCallParser,
    ToolEvent,
)
from ..errors import bad_field
from ..openai.response_events import DELTA, Ending, Event, Part, ResponseEvents, Status
from ..schema.fields import JsonObject

# A token completes few events: the end of one item and the begin of the next are five.
NUMBERS_OF_TOKEN = 8
# One event: a dictionary of five to seven entries, its number and a short text.
EVENT_BYTES = 448
# One token's id, where ids are told: as a number in an event, and in an array.
TOKEN_BYTES = 64
# The arrays of one event's logprobs, beside what is in them.
LOGPROBS_BYTES = 512
_ARGUMENTS = "response.function_call_arguments"


@attrs.define(eq=False)
class ToolRecord:
    """Everything that one response says. Only one task appends; the order of calls is time."""

    events: ResponseEvents
    # Output tokens so far, those without text included.
    token_count: int = attrs.field(default=0, init=False)
    ending: Ending | None = attrs.field(default=None, init=False)
    # The items so far; the last one may be open, its text is not in it then.
    items: list[JsonObject] = attrs.field(factory=list, init=False)

    _parser: ToolCallParser = attrs.field(init=False)
    # In these logprobs are arrays still, which take a twentieth of what objects do.
    _said: list[Event] = attrs.field(factory=list, init=False)
    _numbers: list[int] = attrs.field(factory=list, init=False)
    _is_open: bool = attrs.field(default=False, init=False)
    # Of the open item.
    _texts: list[str] = attrs.field(factory=list, init=False)
    _logprobs: list[Logprobs] = attrs.field(factory=list, init=False)
    # Pieces whose tokens were not told, if somebody asked for those.
    _untold: list[GenerationOutput] = attrs.field(factory=list, init=False)
    # All output tokens, if the request asked for them.
    _token_ids: "array[int] | None" = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._token_ids = array("I") if self.events.request.keeps_token_ids else None
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
        """All output tokens, or None when they are not kept."""
        return None if self._token_ids is None else list(self._token_ids)

    @property
    def extra_bytes(self) -> int:
        """About what it takes to keep it, beside what was said: its events, and what they tell."""
        size = EVENT_BYTES * len(self._said) + TOKEN_BYTES * len(self._token_ids or ())
        told = (event.get("logprobs") for event in self._said)
        return size + sum(LOGPROBS_BYTES + 3 * x.size_bytes for x in told if type(x) is Logprobs)

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
        if self._token_ids is not None:
            self._token_ids.extend(output.token_ids)
        if output.token_ids and self._tells_tokens:
            self._untold.append(output)
        for event in self._parser.push(output.text):
            self._take(event)
        if self._untold and self._is_open and self.items[-1]["type"] == "message":
            self._add_text("")  # what may open a call is held back; its tokens need not be

    @property
    def _tells_tokens(self) -> bool:
        return self.events.teller is not None or self.events.request.options.token_ids

    def _tokens(self) -> JsonObject:
        """What the next event tells of tokens."""
        outputs, self._untold = self._untold, []
        found: JsonObject = {}
        if outputs and self.events.request.options.token_ids:
            ids = [token_id for output in outputs for token_id in output.token_ids]
            found |= {"token_ids": ids, "token_index": self.token_count - len(ids)}
        if (logprobs := join([output.logprobs for output in outputs])) is not None:
            found["logprobs"] = logprobs
        return found

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
        terminal = {"type": self.events.terminal_type(ending), "response": self._object()}
        self._say({**terminal, **self._tokens()})

    def snapshot(self) -> JsonObject:
        """The response object as it is now."""
        return self.told(self._object())

    def told(self, value: JsonObject) -> JsonObject:
        """An event or object with its logprobs as objects, wherever in it they are."""
        if self.events.teller is None:
            return value
        found: JsonObject = self._told(value)
        return found

    def _told(self, value: Any) -> Any:
        match value:
            case Logprobs():
                return self.events.told(value)
            case dict():
                return {name: self._told(inner) for name, inner in value.items()}
            case list():
                return [self._told(inner) for inner in value]
            case _:
                return value

    def _object(self) -> JsonObject:
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
                self._texts.append(text)
                delta = {"type": f"{_ARGUMENTS}.delta", **self._place(), "delta": text}
                self._say({**delta, **self._tokens()})
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
        told = {"logprobs": [], **self._tokens()}
        if isinstance(told["logprobs"], Logprobs):
            self._logprobs.append(told["logprobs"])
        self._texts.append(text)
        self._say({"type": DELTA, **self._content(), "delta": text, **told})

    def _close(self, *, is_whole: bool) -> None:
        if not self._is_open:
            return
        self._is_open = False
        item = self.items[-1]
        item["status"] = "completed" if is_whole else "incomplete"
        text, logprobs = "".join(self._texts), join(self._logprobs)
        self._texts, self._logprobs = [], []
        if item["type"] == "message":
            part = _part(text, logprobs)
            item["_text"], item["content"] = text, [part]
            done = {"type": "response.output_text.done", **self._content(), "text": text}
            self._say({**done, "logprobs": part["logprobs"]})
            self._say({"type": "response.content_part.done", **self._content(), "part": part})
        else:
            item["arguments"] = text
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


def _part(text: str, logprobs: Logprobs | None = None) -> JsonObject:
    part: JsonObject = {"type": "output_text", "text": text, "annotations": []}
    return {**part, "logprobs": [] if logprobs is None else logprobs}


def _merged(run: list[Event]) -> Event:
    """One delta that says what these say one after the other, with the number of the last."""
    if len(run) == 1:
        return run[0]
    merged = {**run[-1], "delta": "".join(str(event["delta"]) for event in run)}
    logprobs = join([x for event in run if isinstance(x := event.get("logprobs"), Logprobs)])
    if logprobs is not None:
        merged["logprobs"] = logprobs
    told: list[Any] = [event for event in run if "token_ids" in event]
    if told:
        merged["token_ids"] = [token_id for event in told for token_id in event["token_ids"]]
        merged["token_index"] = told[0]["token_index"]
    return merged


@attrs.define(eq=False)
class ToolRecordReader:
    """A cursor in one record: gives every event from `place` on once, in order."""

    record: ToolRecord
    place: int
    with_notices: bool = True
    # Deltas that were saved by merging.
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
            run = self._take_run(characters_max - size)
            if run:
                event = _merged(run)
                self.merged += len(run) - 1
                found.append(self.record.told(event))
                size += len(str(event.get("delta", "")))
        return found

    def _take_run(self, characters_max: int) -> list[Event]:
        """The next event; of deltas those of the same item behind it. None for a notice unasked."""
        run: list[Event] = []
        size, said = 0, self.record.said
        while self.is_ready and size < characters_max:
            event = said[self.place]
            if not self.with_notices and str(event["type"]).startswith("runtime."):
                self.place += 1
                continue
            if run and not _continues(run[-1], event):
                break
            run.append(event)
            self.place += 1
            size += len(str(event.get("delta", "")))
        return run


def _continues(before: Event, event: Event) -> bool:
    """Whether both are deltas of one item."""
    return (
        "delta" in event
        and event["type"] == before["type"]
        and (event["item_id"] == before["item_id"])
    )
