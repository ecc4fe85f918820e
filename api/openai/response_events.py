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
from ...engine.sampling_params import SamplingParams
from ...runtime.text.outputs import Logprobs, Usage
from ..errors import ApiError, engine_error
from ..schema.fields import JsonObject
from .logprobs import Entry, LogprobFormatter
from .response_id import item_id_of
from .response_items import REASONING, SUMMARY, Item, event_object
from .response_objects import usage_object
from .response_tools import CustomInput
from .responses_request import ResponseRequest

Event = JsonObject


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
    # When it was completed, in Unix seconds; None of all other ends.
    completed_at: int | None = None

    @property
    def why(self) -> str:
        """In one word: the code of its error, its reason, or its status."""
        return (self.reason or self.status.value) if self.error is None else self.error.code


def ending_of(reason: FinishReason, usage: Usage) -> Ending:
    """The end of a response whose engine ended it so."""
    status, why = _ENDS[reason]
    error = engine_error() if status is Status.FAILED else None
    return Ending(status=status, usage=usage, reason=why, error=error)


@attrs.define(eq=False)
class Delta:
    """The one event that comes for every token; an object, or bytes, only where it is sent."""

    item: Item
    number: int
    text: str
    # Tokens of the text, and the index of the first, if they were asked for.
    token_ids: list[int] | None = None
    token_index: int = 0
    # Logprobs of the tokens, if they were asked for.
    logprobs: list[Entry] | None = None

    def event(self) -> Event:
        """The same as an object."""
        item = self.item
        event = event_object(item.delta_type, self.number, item.place, delta=self.text)
        if self.logprobs is not None or item.is_message:
            event["logprobs"] = self.logprobs or []
        if self.token_ids is not None:
            event["token_ids"] = self.token_ids
            event["token_index"] = self.token_index
        return event


# A reader's part of a stream.
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
    # Numbers of the first and the last event. A notice repeats the number of the event before it.
    number: int
    last_number: int
    item: Item | None = None
    is_end: bool = False
    notice: Event | None = None


@attrs.frozen(kw_only=True)
class ResponseEvents:
    """Builds the events of one response. `created_at` is Unix seconds; `defaults` are the model's
    own, for parameters that a request leaves out.
    """

    response_id: str
    created_at: int
    model: str
    request: ResponseRequest
    defaults: SamplingParams = attrs.field(factory=SamplingParams)
    # Formats logprobs; None: they were not asked for.
    formatter: LogprobFormatter | None = None

    def message(self, index: int, first: int) -> Item:
        """A new item for text."""
        item_id = item_id_of(self.response_id)
        return Item(index, f"{item_id}_{index}" if self.request.is_parsed else item_id, first=first)

    def reasoning(self, index: int, first: int) -> Item:
        """A new item for reasoning."""
        item_id = f"rs_{index}_{self.response_id.removeprefix('resp_')}"
        texts = SUMMARY if self.request.reasoning["summary"] else REASONING
        return Item(index, item_id, texts=texts, first=first)

    def call(self, index: int, first: int, *, number: int, name: str) -> Item:
        """A new item for the `number`-th call, to this function."""
        suffix = f"{number}_{self.response_id.removeprefix('resp_')}"
        origin = self.request.tools.origin(name)
        prefix, reader = ("ctc", CustomInput()) if origin.is_custom else ("fc", None)
        call_id = f"call_{suffix}"
        item_id = f"{prefix}_{suffix}"
        return Item(index, item_id, origin, call_id, reader, first=first)

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
        counts: tuple[int, int],
        inexact_from: int | None = None,
    ) -> JsonObject:
        """The response object as it stays; from that token on it may differ, if from any.

        `counts` are those of output tokens, and of reasoning among them.
        """
        final, error = self.snapshot(ending.status), ending.error
        final["output"] = output
        final["completed_at"] = ending.completed_at
        final["usage"] = usage_object(ending.usage, *counts)
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
        used = sampling.with_defaults(self.defaults).for_rows()
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": None,
            "status": status,
            "background": request.background,
            "error": None,
            "frequency_penalty": used["frequency_penalty"],
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": sampling.max_tokens,
            "max_tool_calls": None,
            "metadata": request.metadata,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": request.tools.is_parallel,
            "presence_penalty": used["presence_penalty"],
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": None,
            "reasoning": request.reasoning,
            "safety_identifier": None,
            "service_tier": "default",
            "store": request.store,
            "temperature": used["temperature"],
            "text": {"format": request.text_format},
            "tool_choice": request.tools.choice_object,
            "tools": request.tools.objects,
            "top_logprobs": sampling.logprobs or 0,
            "top_p": used["top_p"],
            "truncation": request.truncation,
            "usage": None,
            "user": None,
        }

    def format_logprobs(self, logprobs: Logprobs | None) -> list[Entry]:
        """Logprobs as this protocol has them; nothing if they were not asked for."""
        if self.formatter is None or logprobs is None:
            return []
        return self.formatter.chat(logprobs)


_encode = msgspec.json.encode


def encode_part(part: Part, stream_id: str | None = None) -> bytes:
    """Encode an event as JSON, with the lane that it is sent in."""
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
        elif item.is_message:
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
    content = b'"%b":0,' % item.texts.place.encode() if item.origin is None else b""
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
