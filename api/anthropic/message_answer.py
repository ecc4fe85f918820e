"""Answer of the Messages protocol: events of a stream, or the whole message that they add up to.

Sans-IO: outputs in, JSON objects out. Between `message_start` and `message_delta` an answer is
blocks, one after the other: of thinking, of text, and of one call each. A chunk is all events that
one output makes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import attrs
import msgspec

from ...engine.messages import FinishReason
from ...runtime.text.answer_format import AnswerParser
from ...runtime.text.call_arguments import ANSWER_NESTING_MAX, repaired
from ...runtime.text.json_text import read_json
from ...runtime.text.outputs import GenerationOutput, Usage
from ...runtime.text.tool_calls import (
    AnswerEvent,
    ArgumentsPiece,
    CallBegun,
    ReasoningPiece,
    TextPiece,
)
from ..openai.chat import MARK, AnsweredPrompt, WholeChoice, around_marks
from ..openai.sse import Framing, event_frame
from ..schema.fields import JsonObject
from .error_object import error_object
from .messages_request import MessagesRequest
from .turns import SIGNATURE, signature_of

_DELTA = "content_block_delta"


def _events(chunk: JsonObject) -> list[dict[str, Any]]:
    events = chunk["events"]
    assert isinstance(events, list)
    return events


EVENT_FRAMING = Framing(
    lambda chunk: [event_frame(event) for event in _events(chunk)],
    lambda error: event_frame(error_object(error)),
    event_frame({"type": "message_stop"}),
    is_split=True,
)


@attrs.define(eq=False)
class MessageAnswer:
    """Answer to one reader; `is_open`: the prompt has opened the reasoning."""

    framing: ClassVar[Framing] = EVENT_FRAMING
    message_id: str
    model: str
    request: MessagesRequest
    is_open: bool = attrs.field(default=False, kw_only=True)
    # Parser of the text; None: it is one block, open from the beginning.
    _parser: AnswerParser | None = attrs.field(init=False)
    # The kind of the block that is open, and how many were closed before it.
    _block: str | None = attrs.field(default=None, init=False)
    _closed: int = attrs.field(default=0, init=False)
    # Text of the open block of thinking, where it is omitted.
    _thinking: str = attrs.field(default="", init=False)
    # The fields of the end, once there is one.
    _ending: JsonObject = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._parser = self.request.tools.parser(is_open=self.is_open)
        if self._parser is None:
            self._block = "text"

    def for_reader(self) -> Self:
        """Copy for a reader, which has said nothing yet."""
        return attrs.evolve(self)

    # ---- chunks

    def opening(self, index: int, prompt: AnsweredPrompt) -> JsonObject:
        """The beginning of the message; what is cached of its prompt is known at the end."""
        message: JsonObject = {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_object(Usage(len(prompt.token_ids), 0)),
        }
        events: list[JsonObject] = [{"type": "message_start", "message": message}]
        if self._parser is None:
            events.append(self._start({"type": "text", "text": ""}))
        return {"events": [*events, {"type": "ping"}]}

    def around_text(self, index: int) -> list[bytes] | None:
        """The lines around a delta of text, where nothing else comes."""
        if self._parser is not None:
            return None
        head, tail = around_marks(self._delta("text", MARK), 1)
        return [b"event: %b\n%b" % (_DELTA.encode(), head), tail]

    def chunks(
        self, output: GenerationOutput, *, offset: int = 0, inexact_from: int | None = None
    ) -> list[JsonObject]:
        """Events of one piece, the end of the last block included; there may be none."""
        events: list[JsonObject] = []
        for event in self._parse(output):
            self._add(event, events)
        if output.finish_reason is not None:
            self._ending = self._end_of(output, output.finish_reason)
            self._close(events)
            return [{"events": events}]
        return [{"events": events}] if events else []

    def usage_chunk(self, usage: Usage) -> JsonObject:
        """How the message has ended, with its usage."""
        end: JsonObject = {"type": "message_delta", "delta": self._ending}
        return {"events": [{**end, "usage": usage_object(usage)}]}

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> JsonObject:
        """The whole message."""
        (choice,), reader = choices, self.for_reader()
        chunks = [reader.opening(0, choice.prompt), *reader.chunks(choice.output)]
        return _added_up([*chunks, reader.usage_chunk(usage)])

    # ---- blocks

    def _parse(self, output: GenerationOutput) -> Iterable[AnswerEvent]:
        if self._parser is None:
            return [TextPiece(output.text)] if output.text else []
        events = self._parser.push(output.text)
        return events if output.finish_reason is None else events + self._parser.finish()

    def _add(self, event: AnswerEvent, events: list[JsonObject]) -> None:
        match event:
            case ReasoningPiece(text=text):
                if not self.request.with_reasoning:
                    return
                self._open({"type": "thinking", "thinking": "", "signature": ""}, events)
                if self.request.omits_thinking:
                    self._thinking += text
                else:
                    events.append(self._delta("thinking", text))
            case TextPiece(text=text):
                self._open({"type": "text", "text": ""}, events)
                events.append(self._delta("text", text))
            case CallBegun(index=place, name=name):
                self._close(events)
                name_of_call = f"toolu_{place}_{self.message_id.rpartition('_')[2]}"
                call: JsonObject = {
                    "type": "tool_use",
                    "id": name_of_call,
                    "name": name,
                    "input": {},
                }
                self._open(call, events)
            case ArgumentsPiece(text=text):
                delta: JsonObject = {"type": "input_json_delta", "partial_json": text}
                events.append(self._event(_DELTA, delta=delta))

    def _open(self, block: JsonObject, events: list[JsonObject]) -> None:
        """Unless it is open."""
        if self._block != block["type"]:
            self._close(events)
            self._block = str(block["type"])
            events.append(self._start(block))

    def _close(self, events: list[JsonObject]) -> None:
        if self._block is None:
            return
        if self._block == "thinking":
            signature = signature_of(self._thinking) if self._thinking else SIGNATURE
            delta: JsonObject = {"type": "signature_delta", "signature": signature}
            events.append(self._event(_DELTA, delta=delta))
        events.append(self._event("content_block_stop"))
        self._block, self._thinking = None, ""
        self._closed += 1

    def _start(self, block: JsonObject) -> JsonObject:
        return self._event("content_block_start", content_block=block)

    def _delta(self, kind: str, text: str) -> JsonObject:
        return self._event(_DELTA, delta={"type": f"{kind}_delta", kind: text})

    def _event(self, kind: str, **fields: JsonObject) -> JsonObject:
        return {"type": kind, "index": self._closed, **fields}

    # ---- the end

    def _end_of(self, output: GenerationOutput, reason: FinishReason) -> JsonObject:
        stop = output.stop_reason if isinstance(output.stop_reason, str) else None
        if reason in (FinishReason.LENGTH, FinishReason.DEADLINE):
            asked = self.request.sampling.max_tokens or 0
            is_full = reason is FinishReason.LENGTH and output.token_count < asked
            word = "model_context_window_exceeded" if is_full else "max_tokens"
        elif stop is not None:
            word = "stop_sequence"
        else:
            word = "tool_use" if self._parser is not None and self._parser.count else "end_turn"
        return {"stop_reason": word, "stop_sequence": stop}


def usage_object(usage: Usage) -> JsonObject:
    """Token counts in Anthropic's shape; what was cached is not among `input_tokens`."""
    found: JsonObject = {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
    if usage.reasoning_tokens is not None:
        found["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return found


def _added_up(chunks: Iterable[JsonObject]) -> JsonObject:
    """The message that these events make, as SDKs add them up."""
    message: dict[str, Any] = {}
    block: dict[str, Any] = {}
    for event in (event for chunk in chunks for event in _events(chunk)):
        match event["type"]:
            case "message_start":
                message = {**event["message"], "content": []}
            case "content_block_start":
                block = {**event["content_block"]}
                message["content"].append(block)
            case "content_block_delta":
                ((name, piece),) = [each for each in event["delta"].items() if each[0] != "type"]
                block[name] = block.get(name, "") + piece
            case "content_block_stop" if block["type"] == "tool_use":
                block["input"] = _arguments(block.pop("partial_json", ""))
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    return message


def _arguments(text: str) -> object:
    """Arguments of a call, as they were streamed; those that were cut are none."""
    try:
        is_object = isinstance(read_json(text, ANSWER_NESTING_MAX), dict)
    except ValueError:
        return repaired(text, ANSWER_NESTING_MAX) or {}
    return msgspec.Raw(text.encode()) if is_object else {}
