"""Builds the event stream of one response: a pure function of its tokens, for HTTP and WebSocket.

Sans-IO: outputs in, events (plain JSON objects) out. An event's number is the one that it has in
the stream in which every token is a delta of its own:

    created 0 · in_progress 1 · output_item.added 2 · content_part.added 3
    the delta whose last token is the k-th output token (from 1)      3 + k
    output_text.done 4 + n · content_part.done 5 + n · output_item.done 6 + n · terminal 7 + n

so numbers grow, may jump, and do not depend on how a slow writer made us merge: a merged delta
carries the number of its last part. Must not know who writes, nor lanes, nor how frames look.
"""

import attrs

from ..engine.messages import FinishReason
from ..runtime.generation import GenerationOutput, Usage
from .errors import ApiError
from .fields import JsonObject
from .responses_request import ResponseRequest

Event = JsonObject
DELTA = "response.output_text.delta"
# Number of the content_part.added event; deltas and the end count from here.
LAST_OPENING_NUMBER = 3
TERMINAL_TYPES = frozenset({"response.completed", "response.incomplete", "response.failed"})


@attrs.frozen(kw_only=True)
class ResponseIdentity:
    """What makes one response that response; drawn at admission. `created_at` is Unix seconds."""

    response_id: str
    item_id: str
    created_at: int
    model: str


@attrs.define(eq=False)
class ResponseEvents:
    """The builder of one response. Call `begin`, then `output` for each piece, then one ending.

    `token_count` and the text are those that events were built for: after a cancel they are what
    the client has seen, whatever the engine computed beyond.
    """

    identity: ResponseIdentity
    request: ResponseRequest
    token_count: int = attrs.field(default=0, init=False)
    # The whole text so far, in pieces.
    _pieces: list[str] = attrs.field(factory=list, init=False)
    _ended: bool = attrs.field(default=False, init=False)

    @property
    def text(self) -> str:
        """The text of all deltas so far."""
        return "".join(self._pieces)

    def begin(self) -> list[Event]:
        """The four events before the first token."""
        response = self.snapshot("in_progress")
        place = {"output_index": 0}
        return [
            {"type": "response.created", "sequence_number": 0, "response": response},
            {"type": "response.in_progress", "sequence_number": 1, "response": response},
            {
                "type": "response.output_item.added",
                "sequence_number": 2,
                **place,
                "item": self._item("in_progress", []),
            },
            {
                "type": "response.content_part.added",
                "sequence_number": LAST_OPENING_NUMBER,
                **self._place(),
                "part": _part(""),
            },
        ]

    def output(self, output: GenerationOutput) -> list[Event]:
        """The delta of one piece; none when it completes no text (and ids were not asked for)."""
        first = output.token_count - len(output.token_ids)
        self.token_count = output.token_count
        with_ids = self.request.options.token_ids
        if not output.text and not (with_ids and output.token_ids):
            return []
        self._pieces.append(output.text)
        event: Event = {
            "type": DELTA,
            "sequence_number": LAST_OPENING_NUMBER + output.token_count,
            **self._place(),
            "delta": output.text,
            "logprobs": [],
        }
        if with_ids:
            event["token_ids"] = list(output.token_ids)
            event["token_index"] = first
        return [event]

    def finish(self, reason: FinishReason, usage: Usage) -> list[Event]:
        """The end that the engine decided: completed, or incomplete for its length."""
        if reason is FinishReason.LENGTH:
            return self._end("incomplete", usage, details={"reason": "max_output_tokens"})
        if reason is FinishReason.STOP:
            return self._end("completed", usage)
        return self._end("cancelled", usage)

    def cancel(self, usage: Usage) -> list[Event]:
        """The end that a client asked for: `response.incomplete` with status `cancelled`."""
        return self._end("cancelled", usage)

    def fail(self, error: ApiError, usage: Usage) -> list[Event]:
        """The end by an error: one terminal event; what was generated so far stays in it."""
        assert not self._ended
        self._ended = True
        response = self.snapshot(
            "failed",
            output=[self._item("incomplete", [_part(self.text)])],
            usage=usage,
            error={"code": error.code, "message": error.message},
        )
        number = LAST_OPENING_NUMBER + self.token_count + 4
        return [{"type": "response.failed", "sequence_number": number, "response": response}]

    def _end(
        self, status: str, usage: Usage, *, details: dict[str, str] | None = None
    ) -> list[Event]:
        assert not self._ended
        self._ended = True
        number = LAST_OPENING_NUMBER + self.token_count
        part = _part(self.text)
        item = self._item("completed" if status == "completed" else "incomplete", [part])
        response = self.snapshot(status, output=[item], usage=usage, details=details)
        terminal = "response.completed" if status == "completed" else "response.incomplete"
        return [
            {
                "type": "response.output_text.done",
                "sequence_number": number + 1,
                **self._place(),
                "text": self.text,
                "logprobs": [],
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
            {"type": terminal, "sequence_number": number + 4, "response": response},
        ]

    def snapshot(
        self,
        status: str,
        *,
        output: list[JsonObject] | None = None,
        usage: Usage | None = None,
        details: dict[str, str] | None = None,
        error: JsonObject | None = None,
    ) -> JsonObject:
        """The response object, whole: fields that OpenAI's schema wants are there, null or not."""
        sampling = self.request.sampling
        return {
            "id": self.identity.response_id,
            "object": "response",
            "created_at": self.identity.created_at,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": details,
            "instructions": self.request.instructions,
            "max_output_tokens": sampling.max_tokens,
            "max_tool_calls": None,
            "metadata": self.request.metadata,
            "model": self.identity.model,
            "output": output or [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": None,
            "service_tier": "default",
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage, self.token_count),
            "user": None,
        }

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


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage, output_tokens: int) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + output_tokens,
    }


def merge_deltas(first: Event, second: Event) -> Event | None:
    """One delta that says what two say, with the number of the second; None for other events.

    Both must be of one response, the second directly after the first.
    """
    if first["type"] != DELTA or second["type"] != DELTA:
        return None
    merged = {
        **second,
        "delta": f"{first['delta']}{second['delta']}",
    }
    if "token_ids" in first:
        ids, more = first["token_ids"], second["token_ids"]
        assert isinstance(ids, list)
        assert isinstance(more, list)
        merged["token_ids"] = ids + more
        merged["token_index"] = first["token_index"]
    return merged
