"""The events of one response, built from what it says: for HTTP and WebSocket, now or later.

Sans-IO: texts, numbers and an ending in, events (plain JSON objects) out; nothing is remembered, so
an event can be built again for whoever resumes. An event's number is the one that it has in the
stream in which every token is a delta of its own:

    created 0 · in_progress 1 · output_item.added 2 · content_part.added 3
    the delta whose last token is the k-th output token (from 1)      3 + k
    output_text.done 4 + n · content_part.done 5 + n · output_item.done 6 + n · terminal 7 + n

so numbers grow, may jump, and do not depend on how a slow writer made us merge: a merged delta
carries the number of its last part. A response without output (`generate: false`) has 0, 1 and 7.
Must not know who writes, nor lanes, nor how frames look.
"""

import enum
from collections.abc import Sequence

import attrs
import msgspec

from ...runtime.frontend.generation import Logprobs, Usage
from ..errors import ApiError
from ..schema.fields import JsonObject
from .logprobs import Entry, LogprobTeller
from .responses_request import ResponseRequest

Event = JsonObject
DELTA = "response.output_text.delta"
# Number of the content_part.added event; deltas and the end count from here.
LAST_OPENING_NUMBER = 3
# The terminal event comes so many after the last delta.
TERMINAL_DISTANCE = 4
TERMINAL_TYPES = frozenset({"response.completed", "response.incomplete", "response.failed"})


@attrs.frozen(kw_only=True)
class ResponseIdentity:
    """What makes one response that response; drawn at admission. `created_at` is Unix seconds."""

    response_id: str
    item_id: str
    created_at: int
    model: str
    # The item's id as JSON: every delta has it.
    item_json: bytes = attrs.field(init=False, repr=False, eq=False)

    @item_json.default
    def _item_json_default(self) -> bytes:
        return msgspec.json.encode(self.item_id)


class Status(enum.StrEnum):
    """How a response ended, in the words of its object."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"


_TERMINALS = {
    Status.COMPLETED: "response.completed",
    Status.INCOMPLETE: "response.incomplete",
    Status.CANCELLED: "response.incomplete",
    Status.FAILED: "response.failed",
}


@attrs.frozen(kw_only=True)
class Ending:
    """The end of one response. `reason` is told of incomplete ones, `error` of failed ones."""

    status: Status
    usage: Usage
    reason: str | None = None
    error: ApiError | None = None


@attrs.define(eq=False)
class Delta:
    """The one event that comes for every token; made an object, or bytes, by who needs that."""

    identity: ResponseIdentity
    number: int
    text: str
    # Those it covers, and the index of the first, if they were asked for.
    token_ids: list[int] | None = None
    token_index: int = 0
    # Of the tokens that it covers, if they were asked for.
    logprobs: list[Entry] | None = None

    def event(self) -> Event:
        """The same as an object."""
        event: Event = {
            "type": DELTA,
            "sequence_number": self.number,
            "output_index": 0,
            "item_id": self.identity.item_id,
            "content_index": 0,
            "delta": self.text,
            "logprobs": self.logprobs or [],
        }
        if self.token_ids is not None:
            event["token_ids"] = self.token_ids
            event["token_index"] = self.token_index
        return event


# What a reader is given.
Part = Event | Delta


def event_of(part: Part) -> Event:
    """A part as an object."""
    return part.event() if isinstance(part, Delta) else part


@attrs.frozen
class ResponseEvents:
    """Builds the events of one response; `token_count` is always that of what has been said."""

    identity: ResponseIdentity
    request: ResponseRequest
    # None: nobody asked for logprobs.
    teller: LogprobTeller | None = None

    def opening(self) -> list[Event]:
        """The events before the first token."""
        response = self.snapshot("in_progress")
        events: list[Event] = [
            {"type": "response.created", "sequence_number": 0, "response": response},
            {"type": "response.in_progress", "sequence_number": 1, "response": response},
        ]
        if not self.request.generate:
            return events
        return [
            *events,
            {
                "type": "response.output_item.added",
                "sequence_number": 2,
                "output_index": 0,
                "item": self._item("in_progress", []),
            },
            {
                "type": "response.content_part.added",
                "sequence_number": LAST_OPENING_NUMBER,
                **self._place(),
                "part": _part("", []),
            },
        ]

    def delta(
        self,
        text: str,
        token_count: int,
        token_ids: Sequence[int] | None,
        logprobs: Logprobs | None = None,
    ) -> "Delta":
        """One delta up to the `token_count`-th token; ids and logprobs are of those it covers."""
        number = LAST_OPENING_NUMBER + token_count
        if token_ids is None:
            delta = Delta(self.identity, number, text)
        else:
            index = token_count - len(token_ids)
            delta = Delta(self.identity, number, text, list(token_ids), index)
        if logprobs is not None:
            delta.logprobs = self.told(logprobs)
        return delta

    def end(
        self, ending: Ending, text: str, token_count: int, logprobs: Logprobs | None = None
    ) -> list[Event]:
        """The events after the last token; a failed response has the terminal one alone."""
        number = LAST_OPENING_NUMBER + token_count
        told = self.told(logprobs)
        part = _part(text, told)
        item = self._item(_item_status(ending), [part])
        output = [item] if self.request.generate else []
        terminal: Event = {
            "type": _TERMINALS[ending.status],
            "sequence_number": number + TERMINAL_DISTANCE,
            "response": self.final_with(ending, output, token_count),
        }
        if ending.status is Status.FAILED or not self.request.generate:
            return [terminal]
        return [
            {
                "type": "response.output_text.done",
                "sequence_number": number + 1,
                **self._place(),
                "text": text,
                "logprobs": told,
            },
            {
                "type": "response.content_part.done",
                "sequence_number": number + 2,
                **self._place(),
                "part": part,
            },
            {
                "type": "response.output_item.done",
                "sequence_number": number + 3,
                "output_index": 0,
                "item": item,
            },
            terminal,
        ]

    def final(
        self, ending: Ending, text: str, token_count: int, logprobs: Logprobs | None = None
    ) -> JsonObject:
        """The response object as it stays."""
        output = [self._item(_item_status(ending), [_part(text, self.told(logprobs))])]
        return self.final_with(ending, output if self.request.generate else [], token_count)

    def terminal_type(self, ending: Ending) -> str:
        """The name of the last event."""
        return _TERMINALS[ending.status]

    def final_with(self, ending: Ending, output: list[JsonObject], token_count: int) -> JsonObject:
        """The same, with these items."""
        error = ending.error
        return self.snapshot(
            ending.status,
            output=output,
            usage=_usage(ending.usage, token_count),
            details=None if ending.reason is None else {"reason": ending.reason},
            error=None if error is None else {"code": error.code, "message": error.message},
        )

    def snapshot(
        self,
        status: str,
        *,
        output: list[JsonObject] | None = None,
        usage: JsonObject | None = None,
        details: dict[str, str] | None = None,
        error: JsonObject | None = None,
    ) -> JsonObject:
        """The response object, whole: fields that OpenAI's schema wants are there, null or not."""
        request = self.request
        sampling = request.sampling
        return {
            "id": self.identity.response_id,
            "object": "response",
            "created_at": self.identity.created_at,
            "status": status,
            "background": request.background,
            "error": error,
            "incomplete_details": details,
            "instructions": request.instructions,
            "max_output_tokens": sampling.max_tokens,
            "max_tool_calls": None,
            "metadata": request.metadata,
            "model": self.identity.model,
            "output": output or [],
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
            "usage": usage,
            "user": None,
        }

    def told(self, logprobs: Logprobs | None) -> list[Entry]:
        """Logprobs as this protocol tells them; nothing if nobody asked."""
        if self.teller is None or logprobs is None:
            return []
        return self.teller.chat(logprobs)

    def _place(self) -> JsonObject:
        return {"output_index": 0, "item_id": self.identity.item_id, "content_index": 0}

    def _item(self, status: str, content: list[JsonObject]) -> JsonObject:
        return {
            "id": self.identity.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }


def _item_status(ending: Ending) -> str:
    return "completed" if ending.status is Status.COMPLETED else "incomplete"


def _part(text: str, logprobs: list[Entry]) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _usage(usage: Usage, output_tokens: int) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + output_tokens,
    }
