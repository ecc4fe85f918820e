"""Answers of completions: chunks of a stream, or one whole answer with all choices.

Sans-IO: outputs in, JSON objects out.
"""

from collections.abc import Iterable, Sequence

import attrs

from ...engine.messages import FinishReason
from ...runtime.text.outputs import GenerationChoice, GenerationOutput, Logprobs, Usage
from ..schema.fields import JsonObject
from .chat import FINISH_REASONS, inexact_note, stop_reason_of, usage_object
from .logprobs import LogprobFormatter


def no_answer() -> GenerationChoice:
    """What follows a prompt that is echoed alone: it ends at its length."""
    choice = GenerationChoice(0, [])
    choice.finish_reason = FinishReason.LENGTH
    return choice


@attrs.frozen(kw_only=True)
class WholeChoice:
    """One whole answer to one prompt; `echoed` is the prompt's text, "" without echo."""

    prompt_token_ids: Sequence[int]
    echoed: str = ""
    prompt_logprobs: Logprobs | None = None
    answer: GenerationChoice = attrs.field(factory=no_answer)


@attrs.frozen(kw_only=True)
class CompletionsAnswer:
    """One answer's identity; `created` is Unix seconds. Every object repeats it."""

    completion_id: str
    created: int
    model: str
    with_token_ids: bool = False
    # None: without logprobs of choices.
    formatter: LogprobFormatter | None = None
    # With `echo` they begin with the prompt's.
    echoes_logprobs: bool = False
    # None: without those of prompts.
    prompt_formatter: LogprobFormatter | None = None

    def chunks(self, index: int, output: GenerationOutput, offset: int = 0) -> list[JsonObject]:
        """One piece of choice `index`; nothing while it has no content.

        `offset` is how much text of the choice came before.
        """
        with_tokens = output.token_ids and (self.with_token_ids or output.logprobs is not None)
        inexact_from = output.inexact_from
        is_ended = output.finish_reason is not None
        if not (output.text or with_tokens or is_ended or inexact_from is not None):
            return []
        choice = _choice(index, output.text, output.finish_reason, output.stop_reason)
        choice |= inexact_note(inexact_from)
        if self.formatter is not None and output.logprobs is not None:
            choice["logprobs"] = self.formatter.completions(None, output.logprobs, offset=offset)
        if self.with_token_ids:
            choice["token_ids"] = list(output.token_ids)
        return [self._object([choice])]

    def echo_chunk(
        self,
        index: int,
        echoed: str,
        prompt_token_ids: Sequence[int],
        prompt_logprobs: Logprobs | None = None,
    ) -> JsonObject:
        """The prompt itself, before the first piece; also where the prompt's ids are wanted."""
        choice = _choice(index, echoed, None, None)
        if self.formatter is not None and self.echoes_logprobs:
            choice["logprobs"] = self.formatter.completions(
                prompt_logprobs, None, offset=len(echoed), first=prompt_token_ids[0]
            )
        if self.with_token_ids:
            choice["prompt_token_ids"] = list(prompt_token_ids)
        return self._object([choice])

    def usage_chunk(self, usage: Usage) -> JsonObject:
        """The last chunk of a stream that asked for usage: it has no choices."""
        return {**self._object([]), "usage": usage_object(usage)}

    def whole(self, choices: Iterable[WholeChoice], usage: Usage) -> JsonObject:
        """The whole answer, choices in the order of the prompts."""
        made = [self._whole_choice(index, choice) for index, choice in enumerate(choices)]
        return {**self._object(made), "usage": usage_object(usage)}

    def _whole_choice(self, index: int, whole: WholeChoice) -> JsonObject:
        answer = whole.answer
        text = whole.echoed + answer.text
        choice = _choice(index, text, answer.finish_reason, answer.stop_reason)
        choice |= inexact_note(answer.inexact_from)
        if self.with_token_ids:
            choice["prompt_token_ids"] = list(whole.prompt_token_ids)
            choice["token_ids"] = list(answer.token_ids)
        if self.formatter is not None:
            first = whole.prompt_token_ids[0] if self.echoes_logprobs else None
            prompt = whole.prompt_logprobs if self.echoes_logprobs else None
            choice["logprobs"] = self.formatter.completions(
                prompt, answer.logprobs, offset=len(whole.echoed), first=first
            )
        if self.prompt_formatter is not None:
            choice["prompt_logprobs"] = self.prompt_formatter.prompt(whole.prompt_logprobs)
        return choice

    def _object(self, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self.completion_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


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
