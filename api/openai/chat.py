"""Answers of chat completions: chunks of a stream, or one whole completion; their tool calls.

Sans-IO: outputs in, JSON objects out.
"""

from collections.abc import Sequence
from typing import Any, Self

import attrs
import msgspec

from ...engine.messages import FinishReason
from ...runtime.frontend.generation import GenerationStream
from ...runtime.text.outputs import GenerationChoice, GenerationOutput, Logprobs, Usage
from ...runtime.text.tool_calls import (
    ArgumentsPiece,
    CallBegun,
    TextPiece,
    ToolCallParser,
    ToolEvent,
)
from ..schema.fields import JsonObject
from .logprobs import LogprobFormatter

# OpenAI has no word for an aborted choice; its client reads no more anyway.
FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "stop",
    FinishReason.ERROR: "stop",
    # Nor for one that took too long; `stop_reason` has it.
    FinishReason.DEADLINE: "length",
}


# Stands for a text, or token ids, while the JSON around them is encoded.
MARK = "\0mark\0"
_encode = msgspec.json.encode


def around_marks(chunk: JsonObject, count: int) -> list[bytes]:
    """The JSON of a chunk before, between and behind its last so many marks."""
    return _encode(chunk).rsplit(_encode(MARK), count)


@attrs.define
class AnsweredPrompt:
    """What is known of a prompt; `echoed` is its text, "" without echo.

    Its logprobs, if asked for, are known with the first token.
    """

    token_ids: Sequence[int]
    echoed: str = ""
    logprobs: Logprobs | None = None


@attrs.frozen(kw_only=True)
class ChatAnswer:
    """One completion's identity; `created` is Unix seconds. Every object repeats it."""

    completion_id: str
    created: int
    model: str
    with_token_ids: bool = False
    # None: without logprobs.
    formatter: LogprobFormatter | None = None
    # None: without those of the prompt.
    prompt_formatter: LogprobFormatter | None = None
    # Reads the calls out of the text; None where no tool may be called.
    calls: "ChatToolCalls | None" = None

    def for_reader(self) -> Self:
        """One that has said nothing yet; each reader has its own."""
        return self if self.calls is None else attrs.evolve(self, calls=self.calls.fresh())

    def opening(self, index: int, prompt: AnsweredPrompt) -> JsonObject:
        """The first chunk of a choice: the role, no text yet, and the prompt's ids, if wanted."""
        chunk = self._chunk({"role": "assistant", "content": ""}, index)
        if self.with_token_ids:
            chunk["prompt_token_ids"] = list(prompt.token_ids)
        return chunk

    def around_text(self, index: int) -> list[bytes] | None:
        """The JSON around the text of a chunk, and around its token ids where they are wanted.

        None where chunks may have more than that.
        """
        if self.calls is not None or self.formatter is not None:
            return None
        chunk = self._chunk({"content": MARK}, index)
        if self.with_token_ids:
            chunk["choices"][0]["token_ids"] = MARK
        return around_marks(chunk, 1 + self.with_token_ids)

    def chunks(
        self, output: GenerationOutput, *, offset: int = 0, inexact_from: int | None = None
    ) -> list[JsonObject]:
        """What one piece adds to its message, if anything, and the end if it is the last.

        `inexact_from` is to be said with it; where the text stands (`offset`) makes no difference.
        """
        made = []
        delta, note = self._delta(output), inexact_note(inexact_from)
        if delta is not None or note:
            made.append(self._chunk(delta or {}, output.index))
            choice = made[0]["choices"][0]
            choice["logprobs"] = self._logprobs(output.logprobs)
            choice |= note
            if self.with_token_ids and output.token_ids:
                choice["token_ids"] = list(output.token_ids)
        reason = output.finish_reason
        if reason is not None:
            end = self._chunk({}, output.index, self._finish_reason(output.index, reason))
            end["choices"][0]["stop_reason"] = stop_reason_of(reason, output.stop_reason)
            made.append(end)
        return made

    def usage_chunk(self, usage: Usage) -> JsonObject:
        """The last chunk of a stream that asked for usage: it has no choices."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_object(usage)}

    def completion(self, stream: GenerationStream) -> JsonObject:
        """The whole answer of a request that does not stream."""
        head = self._head("chat.completion")
        if self.with_token_ids:
            head["prompt_token_ids"] = list(stream.prompt_token_ids)
        if self.prompt_formatter is not None:
            head["prompt_logprobs"] = self.prompt_formatter.prompt(stream.prompt_logprobs)
        choices = [self._whole_choice(choice) for choice in stream.choices]
        return {**head, "choices": choices, "usage": usage_object(stream.usage)}

    def _whole_choice(self, choice: GenerationChoice) -> JsonObject:
        assert choice.finish_reason is not None
        message: JsonObject = {"role": "assistant", "content": choice.text, "refusal": None}
        if self.calls is not None:
            message = self.calls.message(choice.index, choice.text)
        whole: JsonObject = {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": self._finish_reason(choice.index, choice.finish_reason),
            "stop_reason": stop_reason_of(choice.finish_reason, choice.stop_reason),
        }
        if self.with_token_ids:
            whole["token_ids"] = list(choice.token_ids)
        return whole | inexact_note(choice.inexact_from)

    def _logprobs(self, logprobs: Logprobs | None) -> JsonObject | None:
        if self.formatter is None or logprobs is None:
            return None
        return {"content": self.formatter.chat(logprobs), "refusal": None}

    def _delta(self, output: GenerationOutput) -> JsonObject | None:
        """What a piece adds to its message; empty text if it has tokens alone."""
        if self.calls is None:
            delta: JsonObject = {"content": output.text} if output.text else {}
        else:
            is_last = output.finish_reason is not None
            delta = self.calls.delta(output.index, output.text, is_last=is_last)
        with_tokens = self.with_token_ids or output.logprobs is not None
        return delta or ({"content": ""} if with_tokens and output.token_ids else None)

    def _finish_reason(self, index: int, reason: FinishReason) -> str:
        name = FINISH_REASONS[reason]
        return name if self.calls is None else self.calls.finish_reason(index, name)

    def _head(self, kind: str) -> JsonObject:
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }

    def _chunk(
        self, delta: JsonObject, index: int, finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}


def stop_reason_of(reason: FinishReason | None, stop_reason: str | int | None) -> str | int | None:
    """The stop string or token; OpenAI's finish reasons have no word for a deadline."""
    return reason.value if reason is FinishReason.DEADLINE else stop_reason


def inexact_note(inexact_from: int | None) -> JsonObject:
    """For a choice, from which of its tokens on they may differ (`runtime.inexact_ok`), if any."""
    return {} if inexact_from is None else {"runtime": {"inexact_from": inexact_from}}


def usage_object(usage: Usage) -> JsonObject:
    """Token counts in OpenAI's shape, for chat and completions alike."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@attrs.define(eq=False)
class ChatToolCalls:
    """Those of one completion, in all its choices. Ids are a function of the completion's."""

    completion_id: str
    # A call of a named function ends with `stop`, as OpenAI has it.
    is_named: bool = False
    # So many calls at most, of each choice; None: any number.
    calls_max: int | None = None
    _parsers: dict[int, ToolCallParser] = attrs.field(factory=dict, init=False)

    def fresh(self) -> "ChatToolCalls":
        """The same before the first text."""
        return ChatToolCalls(self.completion_id, self.is_named, self.calls_max)

    def delta(self, index: int, text: str, *, is_last: bool) -> JsonObject:
        """What the next piece of a choice adds to its message; each call once."""
        content, calls = "", dict[int, dict[str, Any]]()
        for event in self._events(index, text, is_last=is_last):
            match event:
                case TextPiece(text=piece):
                    content += piece
                case CallBegun(index=place, name=name):
                    calls[place] = {"index": place, **self._call(index, place, name)}
                case ArgumentsPiece(index=place, text=piece):
                    call = calls.setdefault(place, {"index": place, "function": {"arguments": ""}})
                    call["function"]["arguments"] += piece
        delta: JsonObject = {"content": content} if content else {}
        return {**delta, "tool_calls": list(calls.values())} if calls else delta

    def _events(self, index: int, text: str, *, is_last: bool) -> list[ToolEvent]:
        parser = self._parsers.setdefault(index, ToolCallParser(self.calls_max))
        events = parser.push(text)
        return events + parser.finish() if is_last else events

    def finish_reason(self, index: int, reason: str) -> str:
        """`tool_calls` where the choice has ended with calls."""
        parser = self._parsers.get(index)
        called = parser is not None and parser.count > 0 and not self.is_named
        return "tool_calls" if called and reason == "stop" else reason

    def message(self, index: int, text: str) -> JsonObject:
        """A whole choice's message; its content is null if there are calls alone."""
        content, calls = "", list[dict[str, Any]]()
        for event in self._events(index, text, is_last=True):
            match event:
                case TextPiece(text=piece):
                    content += piece
                case CallBegun(index=place, name=name):
                    calls.append(self._call(index, place, name))
                case ArgumentsPiece(text=piece):
                    calls[-1]["function"]["arguments"] += piece
        message: JsonObject = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message |= {"content": content or None, "tool_calls": calls}
        return message

    def _call(self, index: int, place: int, name: str) -> JsonObject:
        """A call that has no arguments yet."""
        call_id = f"call_{index}_{place}_{self.completion_id.rpartition('_')[2]}"
        function = {"name": name, "arguments": ""}
        return {"id": call_id, "type": "function", "function": function}
