"""Responses API events: the JSON of one response, for HTTP and WebSocket.

Sans-IO: items, texts and an ending in, events out, as objects or as bytes; nothing is remembered,
so an event can be built again for a client that resumes. Their order and numbers are the record's
(`responses.record`). A delta comes for every token, so its bytes are put together from constant
parts instead of from an object, at a tenth of the CPU.
"""

import enum

import attrs
import msgspec

from ...engine.messages import FinishReason, RequestEvent, RequestEventKind
from ...runtime.text.outputs import Logprobs, Usage
from ..errors import ApiError, engine_error
from ..schema.fields import JsonObject
from .logprobs import Entry, LogprobFormatter
from .response_id import item_id_of
from .responses_request import ResponseRequest

Event = JsonObject
# Deltas of a message's text, and of a call's arguments.
DELTA = "response.output_text.delta"
ARGUMENTS_DELTA = "response.function_call_arguments.delta"


class Status(enum.StrEnum):
    """How a response ended, in the words of its object."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = {
    FinishReason.STOP: (Status.COMPLETED, None),
    FinishReason.LENGTH: (Status.INCOMPLETE, "max_output_tokens"),
    FinishReason.ERROR: (Status.FAILED, None),
    FinishReason.DEADLINE: (Status.INCOMPLETE, "deadline"),
    FinishReason.ABORT: (Status.CANCELLED, None),
}
# The type of the last event.
TERMINAL_TYPES = {
    Status.COMPLETED: "response.completed",
    Status.INCOMPLETE: "response.incomplete",
    Status.CANCELLED: "response.incomplete",
    Status.FAILED: "response.failed",
}


@attrs.frozen(kw_only=True)
class Ending:
    """The end of one response. Incomplete ones have a `reason`, failed ones an `error`."""

    status: Status
    usage: Usage
    reason: str | None = None
    error: ApiError | None = None


def ending_of(reason: FinishReason, usage: Usage) -> Ending:
    """The end of a response whose engine ended it so."""
    status, why = _ENDS[reason]
    error = engine_error() if status is Status.FAILED else None
    return Ending(status=status, usage=usage, reason=why, error=error)


@attrs.define(eq=False)
class Item:
    """One item of a response's output: a message, or a call if it has a `name`."""

    index: int
    item_id: str
    name: str | None = None
    call_id: str = ""
    # Which deltas of the record are its own, `[first, stop)`; `stop` is None while it is open.
    first: int = 0
    stop: int | None = None
    status: str = "in_progress"
    # The JSON of its deltas before the number and between number and text, once one was encoded.
    delta_json: tuple[bytes, bytes] | None = None

    @property
    def delta_type(self) -> str:
        """The type of its deltas."""
        return DELTA if self.name is None else ARGUMENTS_DELTA

    @property
    def place(self) -> JsonObject:
        """Where a delta belongs."""
        if self.name is None:
            return {"output_index": self.index, "item_id": self.item_id, "content_index": 0}
        return {"output_index": self.index, "item_id": self.item_id}

    @property
    def opening_count(self) -> int:
        """How many events `opening` has."""
        return 2 if self.name is None else 1

    def opening(self, number: int) -> list[Event]:
        """The events at its beginning; `number` is that of the first."""
        is_message, status = self.name is None, "in_progress"
        item = self._message(status, []) if is_message else self._call(status, "")
        added = _event(
            "response.output_item.added", number, {"output_index": self.index}, item=item
        )
        if not is_message:
            return [added]
        part = text_part("", [])
        return [added, _event("response.content_part.added", number + 1, self.place, part=part)]

    @property
    def closing_count(self) -> int:
        """How many events `closing` has."""
        return 3 if self.name is None else 2

    def closing(self, number: int, whole: JsonObject) -> list[Event]:
        """The events at its end; `whole` is its object."""
        if self.name is None:
            content = whole["content"]
            assert isinstance(content, list)
            part: JsonObject = content[0]
            said = {"text": part["text"], "logprobs": part["logprobs"]}
            events = [
                _event("response.output_text.done", number, self.place, **said),
                _event("response.content_part.done", number + 1, self.place, part=part),
            ]
        else:
            said = {"name": self.name, "arguments": whole["arguments"]}
            events = [_event("response.function_call_arguments.done", number, self.place, **said)]
        number += len(events)
        place: JsonObject = {"output_index": self.index}
        return [*events, _event("response.output_item.done", number, place, item=whole)]

    def whole(self, text: str, logprobs: list[Entry]) -> JsonObject:
        """The object at its end."""
        if self.name is None:
            return self._message(self.status, [text_part(text, logprobs)])
        return self._call(self.status, text)

    def _message(self, status: str, content: list[JsonObject]) -> JsonObject:
        return message_object(self.item_id, "assistant", content, status)

    def _call(self, status: str, arguments: str) -> JsonObject:
        assert self.name is not None
        return call_object(self.item_id, self.call_id, self.name, arguments, status=status)


@attrs.define(eq=False)
class Delta:
    """The one event that comes for every token; an object, or bytes, only where it is sent."""

    item: Item
    number: int
    text: str
    # Those it covers, and the index of the first, if they were asked for.
    token_ids: list[int] | None = None
    token_index: int = 0
    # Of the tokens that it covers, if they were asked for.
    logprobs: list[Entry] | None = None

    def event(self) -> Event:
        """The same as an object."""
        item = self.item
        event = _event(item.delta_type, self.number, item.place, delta=self.text)
        if self.logprobs is not None or self.item.name is None:
            event["logprobs"] = self.logprobs or []
        if self.token_ids is not None:
            event["token_ids"] = self.token_ids
            event["token_index"] = self.token_index
        return event


# What a reader takes.
Part = Event | Delta


def event_of(part: Part) -> Event:
    """A part as an object."""
    return part.event() if isinstance(part, Delta) else part


@attrs.define(eq=False)
class Mark:
    """Events between two deltas, with numbers in a row; they are built when they are read.

    The first mark begins with the two events that every response begins with, the last one of an
    ended response ends with the terminal event. Between them an item opens or, if `is_end`, closes;
    or the mark is one notice.
    """

    # How many deltas came before it.
    place: int
    # Of the first and the last event. A notice has the number of the event before it once more.
    number: int
    last_number: int
    item: Item | None = None
    is_end: bool = False
    notice: Event | None = None


@attrs.frozen(kw_only=True)
class ResponseEvents:
    """Builds the events of one response. `created_at` is Unix seconds."""

    response_id: str
    created_at: int
    model: str
    request: ResponseRequest
    # None: logprobs were not asked for.
    formatter: LogprobFormatter | None = None

    def message(self, index: int, first: int) -> Item:
        """A new item for text."""
        item_id = item_id_of(self.response_id)
        return Item(
            index, f"{item_id}_{index}" if self.request.calls_tools else item_id, first=first
        )

    def call(self, index: int, first: int, *, number: int, name: str) -> Item:
        """A new item for the `number`-th call, to this function."""
        suffix = f"{number}_{self.response_id.removeprefix('resp_')}"
        return Item(index, f"fc_{suffix}", name, f"call_{suffix}", first=first)

    def opening(self) -> list[Event]:
        """The events before all items."""
        response = self.snapshot("in_progress")
        return [
            {"type": "response.created", "sequence_number": 0, "response": response},
            {"type": "response.in_progress", "sequence_number": 1, "response": response},
        ]

    def final(
        self,
        ending: Ending,
        output: list[JsonObject],
        token_count: int,
        inexact_from: int | None = None,
    ) -> JsonObject:
        """The response object as it stays; from that token on it may differ, if from any."""
        final, error = self.snapshot(ending.status), ending.error
        final["output"] = output
        final["usage"] = _usage(ending.usage, token_count)
        if inexact_from is not None:
            final["runtime"] = {"inexact_from": inexact_from}
        if ending.reason is not None:
            final["incomplete_details"] = {"reason": ending.reason}
        if error is not None:
            final["error"] = {"code": error.code, "message": error.message}
        return final

    def snapshot(self, status: str) -> JsonObject:
        """The response object, whole: fields that OpenAI's schema wants are there, null or not."""
        request = self.request
        sampling = request.sampling
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": request.background,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": sampling.max_tokens,
            "max_tool_calls": None,
            "metadata": request.metadata,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": request.tools.is_parallel,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": None,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": None,
            "service_tier": "default",
            "store": request.store,
            "temperature": sampling.temperature,
            "text": {"format": request.text_format},
            "tool_choice": request.tools.choice_object,
            "tools": request.tools.objects,
            "top_logprobs": sampling.logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": None,
        }

    def format_logprobs(self, logprobs: Logprobs | None) -> list[Entry]:
        """Logprobs as this protocol has them; nothing if they were not asked for."""
        if self.formatter is None or logprobs is None:
            return []
        return self.formatter.chat(logprobs)


# ---- objects


def _event(kind: str, number: int, place: JsonObject, **more: object) -> Event:
    return {"type": kind, "sequence_number": number, **place, **more}


def text_part(text: str, logprobs: list[Entry]) -> JsonObject:
    """The content of an assistant's message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def message_object(
    item_id: str, role: str, content: list[JsonObject], status: str = "completed"
) -> JsonObject:
    """A message among the items of a response."""
    head = {"id": item_id, "type": "message", "role": role}
    return {**head, "status": status, "content": content}


def call_object(
    item_id: str, call_id: str, name: str, arguments: str, *, status: str = "completed"
) -> JsonObject:
    """A call among the items of a response."""
    head = {"id": item_id, "type": "function_call", "status": status}
    return {**head, "call_id": call_id, "name": name, "arguments": arguments}


def _usage(usage: Usage, output_tokens: int) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + output_tokens,
    }


_encode = msgspec.json.encode


def encode_part(part: Part, stream_id: str | None = None) -> bytes:
    """One event as JSON, with the lane that it is sent in."""
    if isinstance(part, Delta):
        item = part.item
        if item.delta_json is None:
            item.delta_json = _constant_parts(item)
        head, middle = item.delta_json
        more = b"" if stream_id is None else b',"stream_id":' + _encode(stream_id)
        if part.token_ids is not None:
            ids = (_encode(part.token_ids), part.token_index)
            more += b',"token_ids":%b,"token_index":%d' % ids
        if part.logprobs is not None:
            more += b',"logprobs":' + _encode(part.logprobs)
        elif item.name is None:
            more += b',"logprobs":[]'
        return b"%b%d%b%b%b}" % (
            head,
            part.number,
            middle,
            _encode(part.text),
            more,
        )
    if stream_id is not None:
        part = {**part, "stream_id": stream_id}
    return _encode(part)


def _constant_parts(item: Item) -> tuple[bytes, bytes]:
    content = b'"content_index":0,' if item.name is None else b""
    return (
        b'{"type":"%b","sequence_number":' % item.delta_type.encode(),
        b',"output_index":%d,"item_id":%b,%b"delta":'
        % (item.index, _encode(item.item_id), content),
    )


def notice_of(event: RequestEvent, response_id: str, token_index: int) -> Event:
    """The event for a client: `runtime.queued` and so on, and before which token it happened."""
    kind = event.kind
    notice: Event = {"type": f"runtime.{kind}", "response_id": response_id}
    notice["token_index"] = token_index
    if kind is RequestEventKind.QUEUED:
        notice["position"] = event.detail
    if kind is RequestEventKind.MIGRATED:
        notice["exact"] = event.exact
    return notice
