"""Answers of chat completions: chunks of a stream, or one whole completion; their tool calls.

Sans-IO: outputs in, JSON objects out.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import attrs
import msgspec

from ...engine.messages import FinishReason
from ...runtime.text.answer_format import AnswerParser
from ...runtime.text.outputs import GenerationOutput, Logprobs, Usage
from ...runtime.text.tool_calls import (
    AnswerEvent,
    ArgumentsPiece,
    CallBegun,
    ReasoningPiece,
    TextPiece,
)
from ..schema.fields import JsonObject
from .logprobs import LogprobFormatter
from .sse import CHUNK_FRAMING, Framing
from .tool_use import ToolUse

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
    """A chunk's line of data before, between and behind its last so many marks."""
    return (b"data: " + _encode(chunk)).rsplit(_encode(MARK), count)


@attrs.define
class AnsweredPrompt:
    """Prompt as it is known; `echoed` is its text, "" without echo.

    Its logprobs, if asked for, are known with the first token.
    """

    token_ids: Sequence[int]
    echoed: str = ""
    logprobs: Logprobs | None = None


@attrs.define
class WholeChoice:
    """Answer to one prompt, whole; from a token on of another numerics id, if any."""

    prompt: AnsweredPrompt
    output: GenerationOutput
    inexact_from: int | None = None


@attrs.frozen(kw_only=True)
class CompletionIdentity:
    """Identity of a completion, which every object repeats; `created` is Unix seconds."""

    framing: ClassVar[Framing] = CHUNK_FRAMING
    completion_id: str
    created: int
    model: str
    with_token_ids: bool = False
    # Chunks have `usage`, null before the last one, as OpenAI's have when it is asked for.
    has_usage: bool = False
    # Formats logprobs of choices; None: without.
    formatter: LogprobFormatter | None = None
    # Formats logprobs of prompts; None: without.
    prompt_formatter: LogprobFormatter | None = None


@attrs.frozen(kw_only=True)
class ChatAnswer(CompletionIdentity):
    """Answer to a chat, whole or in chunks."""

    # Parts reasoning and calls from the text; None where there are none.
    messages: "ChatMessages | None" = None

    def for_reader(self) -> Self:
        """Copy for a reader, which has said nothing yet."""
        if self.messages is None:
            return self
        return attrs.evolve(self, messages=self.messages.fresh())

    def opening(self, index: int, prompt: AnsweredPrompt) -> JsonObject:
        """The first chunk of a choice: the role, no text yet, and the prompt's ids, if wanted."""
        chunk = self._chunk({"role": "assistant", "content": ""}, index)
        if self.with_token_ids:
            chunk["prompt_token_ids"] = list(prompt.token_ids)
        return chunk

    def around_text(self, index: int) -> list[bytes] | None:
        """The line around the text of a chunk, and around its token ids where they are wanted.

        None where chunks may have more than that.
        """
        if self.messages is not None or self.formatter is not None:
            return None
        chunk = self._chunk({"content": MARK}, index)
        if self.with_token_ids:
            chunk["choices"][0]["token_ids"] = MARK
        return around_marks(chunk, 1 + self.with_token_ids)

    def chunks(
        self, output: GenerationOutput, *, offset: int = 0, inexact_from: int | None = None
    ) -> list[JsonObject]:
        """Chunks of one piece, the end included if it is the last; there may be none.

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

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> JsonObject:
        """The whole answer of a request that does not stream."""
        head, prompt = self._head("chat.completion"), choices[0].prompt
        if self.with_token_ids:
            head["prompt_token_ids"] = list(prompt.token_ids)
        if self.prompt_formatter is not None:
            head["prompt_logprobs"] = self.prompt_formatter.prompt(prompt.logprobs)
        made = [self._whole_choice(choice) for choice in choices]
        return {**head, "choices": made, "usage": usage_object(usage)}

    def _whole_choice(self, choice: WholeChoice) -> JsonObject:
        output = choice.output
        assert output.finish_reason is not None
        message: JsonObject = {"role": "assistant", "content": output.text, "refusal": None}
        if self.messages is not None:
            message = self.messages.message(output.index, output.text)
        whole: JsonObject = {
            "index": output.index,
            "message": message,
            "logprobs": self._logprobs(output.logprobs),
            "finish_reason": self._finish_reason(output.index, output.finish_reason),
            "stop_reason": stop_reason_of(output.finish_reason, output.stop_reason),
        }
        if self.with_token_ids:
            whole["token_ids"] = list(output.token_ids)
        return whole | inexact_note(choice.inexact_from)

    def _logprobs(self, logprobs: Logprobs | None) -> JsonObject | None:
        if self.formatter is None or logprobs is None:
            return None
        return {"content": self.formatter.chat(logprobs), "refusal": None}

    def _delta(self, output: GenerationOutput) -> JsonObject | None:
        """Delta of a piece; empty text if it has tokens alone."""
        if self.messages is None:
            delta: JsonObject = {"content": output.text} if output.text else {}
        else:
            is_last = output.finish_reason is not None
            delta = self.messages.delta(output.index, output.text, is_last=is_last)
        with_tokens = self.with_token_ids or output.logprobs is not None
        return delta or ({"content": ""} if with_tokens and output.token_ids else None)

    def _finish_reason(self, index: int, reason: FinishReason) -> str:
        name = FINISH_REASONS[reason]
        return name if self.messages is None else self.messages.finish_reason(index, name)

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
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.has_usage else chunk


def stop_reason_of(reason: FinishReason | None, stop_reason: str | int | None) -> str | int | None:
    """The stop string or token; OpenAI's finish reasons have no word for a deadline."""
    return reason.value if reason is FinishReason.DEADLINE else stop_reason


def inexact_note(inexact_from: int | None) -> JsonObject:
    """Note for a choice whose tokens may differ from one on (`runtime.inexact_ok`), if any."""
    return {} if inexact_from is None else {"runtime": {"inexact_from": inexact_from}}


def usage_object(usage: Usage) -> JsonObject:
    """Token counts in OpenAI's shape, for chat and completions alike."""
    found: JsonObject = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens is not None:
        found["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return found


@attrs.define(eq=False)
class ChatMessages:
    """Messages of a completion, one for each choice, with reasoning and calls parted off.

    Ids of calls are a function of the completion's.
    """

    completion_id: str
    tools: ToolUse
    # The prompt has opened the reasoning.
    is_open: bool = False
    # The model may reason, and clients are to see it.
    shows_reasoning: bool = False
    _parsers: dict[int, AnswerParser] = attrs.field(factory=dict, init=False)

    def fresh(self) -> "ChatMessages":
        """The same before the first text."""
        return ChatMessages(self.completion_id, self.tools, self.is_open, self.shows_reasoning)

    def delta(self, index: int, text: str, *, is_last: bool) -> dict[str, Any]:
        """Delta of the next piece of a choice; each call once."""
        reasoning, content, calls = "", "", dict[int, dict[str, Any]]()
        for event in self._events(index, text, is_last=is_last):
            match event:
                case ReasoningPiece(text=piece):
                    reasoning += piece
                case TextPiece(text=piece):
                    content += piece
                case CallBegun(index=place, name=name):
                    calls[place] = {"index": place, **self._call(index, place, name)}
                case ArgumentsPiece(index=place, text=piece):
                    call = calls.setdefault(place, {"index": place, "function": {"arguments": ""}})
                    call["function"]["arguments"] += piece
        delta: dict[str, Any] = {"content": content} if content else {}
        if reasoning and self.shows_reasoning:
            delta |= _reasoning(reasoning)
        return {**delta, "tool_calls": list(calls.values())} if calls else delta

    def _events(self, index: int, text: str, *, is_last: bool) -> list[AnswerEvent]:
        parser = self._parsers.get(index)
        if parser is None:
            parser = self.tools.parser(is_open=self.is_open)
            assert parser is not None, "there is something to part"
            self._parsers[index] = parser
        events = parser.push(text)
        return events + parser.finish() if is_last else events

    def finish_reason(self, index: int, reason: str) -> str:
        """`tool_calls` where the choice has ended with calls."""
        parser = self._parsers.get(index)
        # A call of a named function ends with `stop`, as OpenAI has it.
        is_named = self.tools.choice.name is not None
        called = parser is not None and parser.count > 0 and not is_named
        return "tool_calls" if called and reason == "stop" else reason

    def message(self, index: int, text: str) -> JsonObject:
        """A whole choice's message; its content is null if there are calls alone."""
        said = self.delta(index, text, is_last=True)
        calls = [
            {name: value for name, value in call.items() if name != "index"}
            for call in said.get("tool_calls", ())
        ]
        content = said.get("content", "")
        message: JsonObject = {"role": "assistant", "content": content, "refusal": None}
        if self.shows_reasoning:
            message |= _reasoning(said.get("reasoning"))
        if calls:
            message |= {"content": content or None, "tool_calls": calls}
        return message

    def _call(self, index: int, place: int, name: str) -> JsonObject:
        """A call that has no arguments yet."""
        call_id = f"call_{index}_{place}_{self.completion_id.rpartition('_')[2]}"
        function = {"name": name, "arguments": ""}
        return {"id": call_id, "type": "function", "function": function}


def _reasoning(text: str | None) -> JsonObject:
    """By the name that most clients read, and by vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}
