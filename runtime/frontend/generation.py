"""Generation API of the runtime: prompts in, streams of outputs back, health and statistics.

The protocol `Generator` is all that an API needs; `runtime.runtime` implements it and tests of
`api` fake it. A stream is a thin shell: it takes from an `OutputCollector`, keeps the text, and
reports how far it was consumed, from which credit follows. `request_flow` shows a token's way.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self

import attrs
import trio

from ...engine.errors import InvalidParameter
from ...engine.messages import FinishReason
from ...engine.request_options import RequestOptions
from ...engine.sampling_params import SamplingParams
from ..journal.journal import AdmissionNote
from ..text.outputs import GenerationChoice, GenerationOutput, Logprobs, Usage
from ..text.prompts import ChatPrompt, Prompt
from .health import Health, RuntimeStatistics
from .ledger_entry import RequestState
from .output_collector import ChoicesCollector, OutputCollector, OutputListener


class ChoiceFlow(Protocol):
    """Source of one choice's outputs: `request_flow.RequestFlow`, or a test's."""

    @property
    def collector(self) -> OutputCollector:
        """Collector of the outputs that wait."""

    def handle_consumed(self, token_count: int) -> float:
        """Note the count of all tokens taken; returns the count at which to call again."""

    @property
    def client_credit(self) -> int | None:
        """Tokens that the client has granted in all; None where there is no limit."""

    def handle_granted(self, tokens: int) -> None:
        """The client allows so many tokens more."""

    def end(self, reason: FinishReason) -> None:
        """End early, with this reason in the last output."""

    def close(self) -> None:
        """The reader has gone."""


@attrs.frozen
class GenerationFacts:
    """Facts of a request so far, all choices together."""

    usage: Usage
    # Seconds from admission; None before the first token, or if a part was in another life.
    first_token_s: float | None = None
    # How often a choice went on at another engine, as its own was gone.
    replays: int = 0


@attrs.define(eq=False)
class GenerationStream:
    """The outputs of one request, in order, each token once; also the whole answer so far.

    One task iterates. Outputs of several choices interleave, each with its `index`. Iteration ends
    after the output with `finish_reason` (of the last choice that has one), and raises
    `EngineDied` or `RequestFailed` when the request ended by that; nothing comes after. Leaving
    the block that opened the stream aborts the request if it is unfinished.
    """

    request_id: str
    # 0 for each token of a prompt of embeddings.
    prompt_token_ids: list[int]
    # A flow for each choice, in order.
    flows: Sequence[ChoiceFlow]
    # Whatever has no end at this time (trio's clock) ends by `FinishReason.DEADLINE`.
    deadline: float = math.inf

    # Outputs of all choices are taken from here.
    collector: OutputCollector | ChoicesCollector = attrs.field(init=False)
    choices: list[GenerationChoice] = attrs.field(init=False)
    # The ledger's state of each choice.
    states: Sequence[RequestState] = attrs.field(default=(), init=False)
    # The text of what is taken is kept in `choices`.
    _is_kept: bool = attrs.field(default=True, init=False)
    # Choices without an end; 0 also after a failure.
    _open: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        collectors = [flow.collector for flow in self.flows]
        self.collector = collectors[0] if len(collectors) == 1 else ChoicesCollector(collectors)
        self.choices = [
            GenerationChoice(index, each.token_ids) for index, each in enumerate(collectors)
        ]
        self._open = len(collectors)

    @property
    def text(self) -> str:
        """The whole text so far, of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Output tokens so far, of the first choice."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> Logprobs | None:
        """Logprobs of `token_ids`, if asked for."""
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or token that ended the first choice."""
        return self.choices[0].stop_reason

    @property
    def output_tokens(self) -> int:
        """Output tokens so far, of all choices."""
        return sum(choice.token_count for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """How much of the prompt needed no computing; known with the first token."""
        return max([flow.collector.cached_tokens for flow in self.flows])

    @property
    def prompt_logprobs(self) -> Logprobs | None:
        """Logprobs of the prompt but its first token, if asked for; come with the first output."""
        return self.flows[0].collector.prompt_logprobs

    @property
    def usage(self) -> Usage:
        """Token counts so far, of all choices; final once the iteration has ended."""
        return Usage(len(self.prompt_token_ids), self.output_tokens, self.cached_tokens)

    @property
    def facts(self) -> GenerationFacts:
        """Facts of this moment; final once the iteration has ended."""
        times = [each.first_token_s for each in self.states if each.first_token_s is not None]
        replays = max((each.replays for each in self.states), default=0)
        return GenerationFacts(self.usage, min(times, default=None), replays)

    def __aiter__(self) -> Self:
        """The stream is its own iterator: pieces are given out once."""
        return self

    async def __anext__(self) -> GenerationOutput:
        """Wait for the next piece. A checkpoint; cancellation loses no token."""
        if not self._open:
            raise StopAsyncIteration
        try:
            if self.deadline == math.inf:  # a scope costs as much as all else here
                output = await self.collector.take()
            else:
                output = await self._take_in_time()
        except Exception:  # whatever the request ended with: nothing comes after it
            self._open = 0
            raise
        self._note(output)
        return output

    async def _take_in_time(self) -> GenerationOutput:
        with trio.move_on_at(self.deadline):
            return await self.collector.take()
        self.expire()
        return await self.collector.take()

    def expire(self) -> None:
        """The deadline has passed, for those who do not iterate: what has no end ends by that."""
        for choice in self.choices:
            if choice.finish_reason is None:
                self.flows[choice.index].end(FinishReason.DEADLINE)

    def abort(self, choice: int) -> None:
        """End one choice early, the others go on; its last output says `FinishReason.ABORT`.

        Never waits; one that has ended stays as it is. To end all, leave the block.
        """
        if self.choices[choice].finish_reason is None:
            self.flows[choice].end(FinishReason.ABORT)

    @property
    def has_end(self) -> bool:
        """Whether the end, or a failure, has come; it may not have been taken yet."""
        return self.collector.finished

    def listen(self, listener: OutputListener) -> None:
        """Call this reader whenever there is something for `take_nowait`.

        It keeps the text that it takes: from now on that is not kept here.
        """
        self._is_kept = False
        self.collector.listen(listener)

    def take_nowait(self) -> GenerationOutput | None:
        """The next piece, or None while there is none and after the last. Raises as iteration."""
        if not (self._open and self.collector.is_ready):
            return None
        try:
            output = self.collector.take_nowait()
        except Exception:
            self._open = 0
            raise
        if output is not None:
            self._note(output)
        return output

    def _note(self, output: GenerationOutput) -> None:
        choice = self.choices[output.index]
        count = choice.token_count = output.token_count
        if output.events:
            first = output.inexact_from
            choice.inexact_from = choice.inexact_from if first is None else first
        if self._is_kept:
            choice.keep(output)
        if output.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = output.finish_reason, output.stop_reason
            self._open -= 1
        elif count >= choice.reports_at:
            choice.reports_at = self.flows[output.index].handle_consumed(count)

    @property
    def client_credit(self) -> int | None:
        """Tokens that the client has granted so far; None where there is no limit."""
        return self.flows[0].client_credit

    def grant(self, tokens: int) -> None:
        """Let this number of tokens more be generated, for a request opened with `credit`.

        Never waits; at its credit a request is paused where it is. Of one that was opened without
        (it has credit to its end) or has ended nothing changes. Raises `InvalidParameter`.
        """
        if type(tokens) is not int or tokens < 0:
            raise InvalidParameter("credit", f"must be a whole number from 0 on, not {tokens!r}")
        for flow in self.flows:
            flow.handle_granted(tokens)

    def close(self) -> None:
        """The block is left: whatever has not ended does, and what waits is dropped."""
        for flow in self.flows:
            flow.close()
        self.collector.close()

    async def collect(self) -> Self:
        """Consume to the end and return the stream itself, for its `text`, `token_ids`, `usage`."""
        async for _ in self:
            pass
        return self


class Generator(Protocol):
    """A served model, as an API sees it."""

    @property
    def model_name(self) -> str:
        """The name that clients use."""

    @property
    def model_created_at(self) -> int:
        """When the model's folder was written, in Unix seconds."""

    @property
    def max_model_len(self) -> int:
        """Maximum length of prompt and output together, in tokens."""

    @property
    def max_logprobs(self) -> int:
        """Maximum number of alternatives per token whose logprobs an answer may have."""

    @property
    def sampling_defaults(self) -> SamplingParams:
        """Advice of the model's makers, for parameters that a request leaves out."""

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        request_id: str | None = None,
        principal: str = "",
        streaming: bool = True,
        note: AdmissionNote | None = None,
    ) -> AbstractAsyncContextManager[GenerationStream]:
        """Open one request; leaving the block ends it, wherever it is.

        Entering raises the `InvalidRequest` family, `Overloaded` or `NoEngine`. With `streaming`
        off the engine runs to the end whatever is consumed, and outputs come all at once.
        With `events` outputs report what happens to the request. With `credit` no more tokens are
        generated than that, and what `stream.grant` adds to it, for each choice. What has not ended
        after `deadline_s` seconds does, by `FinishReason.DEADLINE`, for those who iterate.
        Tokens may wait up to `merge_s` to come together, which saves most of what they cost; the
        first and the last do not wait, nor any of a request that has stop strings or a deadline.
        With `inexact_ok` an engine that computes other tokens may go on with the request where its
        own died; an event reports it, and `GenerationChoice.inexact_from`.
        With `engine` all choices go to the engine of this rank, and wait for its next life if it
        dies; to another one only when that does not come in time, which an event reports.
        With a note the journal has the request, where there is one: see `adoption`.
        """

    async def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool, principal: str = ""
    ) -> list[int]:
        """Token ids of a text or conversation, of any length. Raises the `InvalidRequest` family.

        No engine is asked. Raises `Overloaded` if too many texts of this principal wait.
        Cancellation waits for the end of one slice.
        """

    async def detokenize(self, token_ids: Sequence[int], *, principal: str = "") -> str:
        """The text of token ids, special tokens included. Raises as `tokenize`."""

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """Bytes of each token, special ones too; b"" for an id that the model lacks."""

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """How the vocabulary spells each token; "" for an id that it does not have."""

    def tokenizer_info(self) -> dict[str, object]:
        """Facts about the tokenizer as JSON: special tokens, the chat template, sizes."""

    def health(self) -> Health:
        """Whether work can be taken now, and why not. Never waits."""

    def statistics(self) -> RuntimeStatistics:
        """The latest known counts of every engine and of this frontend. Never waits."""
