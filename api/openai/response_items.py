"""Items of a response's output: a message, its reasoning, or a call; their events and objects.

Sans-IO: values in, events out. Messages and reasoning differ in the names of their events alone.
Nothing here summarises: the summary of reasoning, for clients that ask for one, is all of it.
"""

import attrs

from ..schema.fields import JsonObject
from .logprobs import Entry
from .response_objects import call_object, message_object, reasoning_object, text_part
from .response_tools import CustomInput
from .tool_use import ToolOrigin

# Deltas of a call's arguments, and of a custom tool's input.
ARGUMENTS_DELTA = "response.function_call_arguments.delta"
INPUT_DELTA = "response.custom_tool_call_input.delta"


@attrs.frozen
class ItemTexts:
    """How the events of an item of text are called, and where its text is."""

    delta: str
    done: str
    part: str
    # The kind of the part that has the text; the field that has the part; and of its place.
    kind: str
    field: str
    place: str


MESSAGE = ItemTexts(
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part",
    "output_text",
    "content",
    "content_index",
)
REASONING = ItemTexts(
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part",
    "reasoning_text",
    "content",
    "content_index",
)
SUMMARY = ItemTexts(
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.reasoning_summary_part",
    "summary_text",
    "summary",
    "summary_index",
)


def event_object(kind: str, number: int, place: JsonObject, **more: object) -> JsonObject:
    """Make an event of a response."""
    return {"type": kind, "sequence_number": number, **place, **more}


@attrs.define(eq=False)
class Item:
    """Item of a response's output: a call if it has an `origin`, else of text."""

    index: int
    item_id: str
    origin: ToolOrigin | None = None
    call_id: str = ""
    # Reads that of a custom tool out of the arguments that the model writes.
    input: CustomInput | None = None
    texts: ItemTexts = MESSAGE
    # Which deltas of the record are its own, `[first, stop)`; `stop` is None while it is open.
    first: int = 0
    stop: int | None = None
    status: str = "in_progress"
    # The JSON of its deltas before the number and between number and text, once one was encoded.
    delta_json: tuple[bytes, bytes] | None = None

    @property
    def is_message(self) -> bool:
        """Whether its text is the answer."""
        return self.origin is None and self.texts is MESSAGE

    @property
    def is_reasoning(self) -> bool:
        """Whether its text is reasoning."""
        return self.origin is None and self.texts is not MESSAGE

    @property
    def delta_type(self) -> str:
        """The type of its deltas."""
        if self.origin is None:
            return self.texts.delta
        return ARGUMENTS_DELTA if self.input is None else INPUT_DELTA

    def said(self, piece: str) -> str:
        """Text to show of a piece of a call's arguments."""
        return piece if self.input is None else self.input.push(piece)

    @property
    def place(self) -> JsonObject:
        """Place of a delta."""
        place: JsonObject = {"output_index": self.index, "item_id": self.item_id}
        return {**place, self.texts.place: 0} if self.origin is None else place

    @property
    def opening_count(self) -> int:
        """How many events `opening` has."""
        return 2 if self.origin is None else 1

    def opening(self, number: int) -> list[JsonObject]:
        """The events at its beginning; `number` is that of the first."""
        place: JsonObject = {"output_index": self.index}
        item = self._text(None, []) if self.origin is None else self._call("")
        item["status"] = "in_progress"
        added = event_object("response.output_item.added", number, place, item=item)
        if self.origin is not None:
            return [added]
        part = self._part("", [])
        kind = f"{self.texts.part}.added"
        return [added, event_object(kind, number + 1, self.place, part=part)]

    @property
    def closing_count(self) -> int:
        """How many events `closing` has."""
        return 3 if self.origin is None else 2

    def closing(self, number: int, whole: JsonObject) -> list[JsonObject]:
        """The events at its end; `whole` is its object."""
        if self.origin is None:
            parts = whole[self.texts.field]
            assert isinstance(parts, list)
            part: JsonObject = parts[0]
            shown = {name: part[name] for name in ("text", "logprobs") if name in part}
            events = [
                event_object(self.texts.done, number, self.place, **shown),
                event_object(f"{self.texts.part}.done", number + 1, self.place, part=part),
            ]
        elif self.origin.is_custom:
            kind = "response.custom_tool_call_input.done"
            events = [event_object(kind, number, self.place, input=whole["input"])]
        else:
            said = {"name": self.origin.name, "arguments": whole["arguments"]}
            kind = "response.function_call_arguments.done"
            events = [event_object(kind, number, self.place, **said)]
        number += len(events)
        place: JsonObject = {"output_index": self.index}
        return [*events, event_object("response.output_item.done", number, place, item=whole)]

    def whole(self, text: str, logprobs: list[Entry]) -> JsonObject:
        """The object at its end."""
        return self._text(text, logprobs) if self.origin is None else self._call(text)

    def _part(self, text: str, logprobs: list[Entry]) -> JsonObject:
        if self.is_message:
            return text_part(text, logprobs)
        return {"type": self.texts.kind, "text": text}

    def _text(self, text: str | None, logprobs: list[Entry]) -> JsonObject:
        parts = [] if text is None else [self._part(text, logprobs)]
        if self.is_message:
            return message_object(self.item_id, "assistant", parts, self.status)
        return reasoning_object(self.item_id, {self.texts.field: parts}, self.status)

    def _call(self, arguments: str) -> JsonObject:
        assert self.origin is not None
        return call_object(self.item_id, self.call_id, self.origin, arguments, status=self.status)
