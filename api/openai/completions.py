"""Answers of completions: chunks of a stream, or one whole answer with all choices.

Sans-IO: outputs in, JSON objects out.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Self

import attrs

from ...engine.messages import FinishReason
from ...runtime.text.outputs import GenerationOutput, Usage
from ..schema.fields import JsonObject
from .chat import (
    FINISH_REASONS,
    MARK,
    AnsweredPrompt,
    CompletionIdentity,
    WholeChoice,
    around_marks,
    inexact_note,
    stop_reason_of,
    usage_object,
)


@attrs.frozen(kw_only=True)
class CompletionsAnswer(CompletionIdentity):
    """Answer of completions, whole or in chunks."""

    # Logprobs begin with the prompt's, with `echo`.
    echoes_logprobs: bool = False

    def for_reader(self) -> Self:
        """Nothing depends on what was said."""
        return self

    def opening(self, index: int, prompt: AnsweredPrompt) -> JsonObject | None:
        """The prompt itself, before the first piece, where it or its ids are wanted."""
        if not (prompt.echoed or self.echoes_logprobs or self.with_token_ids):
            return None
        choice = _choice(index, prompt.echoed, None, None)
        if self.formatter is not None and self.echoes_logprobs:
            choice["logprobs"] = self.formatter.completions(
                prompt.logprobs, None, offset=len(prompt.echoed), first=prompt.token_ids[0]
            )
        if self.with_token_ids:
            choice["prompt_token_ids"] = list(prompt.token_ids)
        return self._object([choice])

    def around_text(self, index: int) -> list[bytes] | None:
        """The line around the text of a chunk, and around its token ids where they are wanted.

        None where chunks may have more than that.
        """
        if self.formatter is not None:
            return None
        choice = _choice(index, MARK, None, None)
        if self.with_token_ids:
            choice["token_ids"] = MARK
        return around_marks(self._object([choice]), 1 + self.with_token_ids)

    def chunks(
        self, output: GenerationOutput, *, offset: int = 0, inexact_from: int | None = None
    ) -> list[JsonObject]:
        """Chunks of one piece, the end included if it is the last; none while it has no content.

        `offset` is how much text came before, `inexact_from` is to be said with it.
        """
        with_tokens = output.token_ids and (self.with_token_ids or output.logprobs is not None)
        is_ended = output.finish_reason is not None
        if not (output.text or with_tokens or is_ended or inexact_from is not None):
            return []
        choice = _choice(output.index, output.text, output.finish_reason, output.stop_reason)
        choice |= inexact_note(inexact_from)
        if self.formatter is not None and output.logprobs is not None:
            said = self.formatter.completions(None, output.logprobs, offset=offset)
            # By what was said of each, so that they are the same however the text is cut.
            sizes = [len(text) for text in output.parts[: len(output.token_ids) - 1]]
            said["text_offset"] = list(accumulate(sizes, initial=offset))
            choice["logprobs"] = said
        if self.with_token_ids:
            choice["token_ids"] = list(output.token_ids)
        return [self._object([choice])]

    def usage_chunk(self, usage: Usage) -> JsonObject:
        """The last chunk of a stream that asked for usage: it has no choices."""
        return {**self._object([]), "usage": usage_object(usage)}

    def whole(self, choices: Iterable[WholeChoice], usage: Usage) -> JsonObject:
        """The whole answer, choices in the order of the prompts."""
        made = [self._whole_choice(choice) for choice in choices]
        return {**self._object(made), "usage": usage_object(usage)}

    def _whole_choice(self, whole: WholeChoice) -> JsonObject:
        output, prompt = whole.output, whole.prompt
        text = prompt.echoed + output.text
        choice = _choice(output.index, text, output.finish_reason, output.stop_reason)
        choice |= inexact_note(whole.inexact_from)
        if self.with_token_ids:
            choice["prompt_token_ids"] = list(prompt.token_ids)
            choice["token_ids"] = list(output.token_ids)
        if self.formatter is not None:
            first = prompt.token_ids[0] if self.echoes_logprobs else None
            choice["logprobs"] = self.formatter.completions(
                prompt.logprobs if self.echoes_logprobs else None,
                output.logprobs,
                offset=len(prompt.echoed),
                first=first,
            )
        if self.prompt_formatter is not None:
            choice["prompt_logprobs"] = self.prompt_formatter.prompt(prompt.logprobs)
        return choice

    def _object(self, choices: list[JsonObject]) -> JsonObject:
        made: JsonObject = {
            "id": self.completion_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return {**made, "usage": None} if self.has_usage else made


def _choice(
    index: int,
    text: str,
    finish_reason: FinishReason | None,
    stop_reason: str | int | None,
) -> JsonObject:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": None if finish_reason is None else FINISH_REASONS[finish_reason],
        "stop_reason": stop_reason_of(finish_reason, stop_reason),
    }


def usage_of(usages: Iterable[Usage]) -> Usage:
    """The usage of all prompts together."""
    counts = [(each.prompt_tokens, each.output_tokens, each.cached_tokens) for each in usages]
    prompt, output, cached = map(sum, zip(*counts, strict=True))
    return Usage(prompt, output, cached)
