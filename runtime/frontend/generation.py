"""What an API needs of the runtime: prompts in, streams of outputs back, health and statistics.

The protocol `Generator` is the whole face; `runtime.runtime` implements it and tests of `api` fake
it. A stream is a thin shell: it takes from its `MergedSlot`, keeps the whole answer and says how
far it was consumed, from which others derive credit. Must not know engines, sockets or HTTP.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self

import attrs
import trio

from ...engine.errors import InvalidParameter
from ...engine.messages import EngineStatistics, FinishReason, RequestEvent, RequestEventKind
from ...engine.sampling_params import SamplingParams
from ..messages import EngineHealth, EngineState
from ..text.logprobs import Logprobs, TokenLogprob
from ..text.outputs import Choice, GenerationOutput, Usage
from ..text.prompt_embeds import PromptEmbeds
from ..text.prompts import ChatPrompt, Prompt
from .choice_slots import ChoiceSlots
from .health import FrontendStatistics, Health, RuntimeStatistics
from .output_collector import MergedSlot

__all__ = [
    "ChatPrompt",
    "Choice",
    "EngineHealth",
    "EngineState",
    "EngineStatistics",
    "FinishReason",
    "FrontendStatistics",
    "GenerationOutput",
    "GenerationStream",
    "Generator",
    "Health",
    "Logprobs",
    "Prompt",
    "PromptEmbeds",
    "RequestEvent",
    "RequestEventKind",
    "RuntimeStatistics",
    "TokenLogprob",
    "Usage",
]


@attrs.define(eq=False)
class GenerationStream:
    """The outputs of one request, in order, each token once; also the whole answer so far.

    One task iterates. Outputs of several choices interleave, each with its `index`. Iteration ends
    after the output with `finish_reason` (of the last choice that has one), and raises
    `EngineDied` or `RequestFailed` when the request ended by that; nothing comes after. Leaving
    the block that opened the stream aborts the request if it is unfinished.
    """

    request_id: str
    # Of a prompt of embeddings: 0 for each token.
    prompt_token_ids: list[int]
    slot: MergedSlot | ChoiceSlots
    # Of each choice: called with its output tokens taken so far, after a piece; says of how many
    # it is to be called again.
    on_consumed: Sequence[Callable[[int], float]] = ()
    # Called with the number of tokens that a reader grants.
    on_granted: Callable[[int], None] | None = None
    # Called to end a choice early, with its index; its last output then says why.
    on_ended: Callable[[int, FinishReason], None] | None = None

    # Whatever has no end at this time (trio's clock) ends by `FinishReason.DEADLINE`.
    deadline: float = math.inf
    # What came with the first token; whoever fills the slot sets it.
    cached_tokens: int = 0
    prompt_logprobs: Logprobs | None = None
    choices: list[Choice] = attrs.field(init=False)
    # What is taken is kept in `choices`.
    _is_kept: bool = attrs.field(default=True, init=False)
    # Choices without an end; 0 also after a failure.
    _open: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        count = len(self.slot.slots) if isinstance(self.slot, ChoiceSlots) else 1
        self.choices = [Choice(index) for index in range(count)]
        self._open = count

    @property
    def text(self) -> str:
        """The whole text so far, of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """All output tokens so far, of the first choice."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> Logprobs | None:
        """One for each of `token_ids`, if asked for."""
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
    def usage(self) -> Usage:
        """Token counts so far, of all choices; final once the iteration has ended."""
        return Usage(len(self.prompt_token_ids), self.output_tokens, self.cached_tokens)

    def __aiter__(self) -> Self:
        """The stream is its own iterator: pieces are given out once."""
        return self

    async def __anext__(self) -> GenerationOutput:
        """Wait for the next piece. A checkpoint; cancellation loses no token."""
        if not self._open:
            raise StopAsyncIteration
        try:
            if self.deadline == math.inf:  # a scope costs as much as all else here
                output = await self.slot.take()
            else:
                output = await self._take_in_time()
        except Exception:  # whatever the request ended with: nothing comes after it
            self._open = 0
            raise
        self._note(output)
        return output

    async def _take_in_time(self) -> GenerationOutput:
        with trio.move_on_at(self.deadline):
            return await self.slot.take()
        for choice in self.choices:
            if choice.finish_reason is None:
                self._end(choice.index, FinishReason.DEADLINE)
        return await self.slot.take()

    def abort(self, choice: int) -> None:
        """End one choice early, the others go on; its last output says `FinishReason.ABORT`.

        Never waits; one that has ended stays as it is. To end all, leave the block.
        """
        if self.choices[choice].finish_reason is None:
            self._end(choice, FinishReason.ABORT)

    def _end(self, choice: int, reason: FinishReason) -> None:
        if self.on_ended is not None:
            self.on_ended(choice, reason)

    @property
    def has_end(self) -> bool:
        """Whether the end, or a failure, has come; it may not have been taken yet."""
        return self.slot.finished

    def follow(self, on_ready: Callable[[bool], None]) -> None:
        """Have `on_ready` called whenever a piece may be taken; see `MergedSlot.follow`.

        Who follows keeps what it takes: from now on the answer is only counted here.
        """
        self._is_kept = False
        self.slot.follow(on_ready)

    def take_nowait(self) -> GenerationOutput | None:
        """The next piece, or None while there is none and after the last. Raises as iteration."""
        if not (self._open and self.slot.is_ready):
            return None
        try:
            output = self.slot.take_nowait()
        except Exception:
            self._open = 0
            raise
        if output is not None:
            self._note(output)
        return output

    def _note(self, output: GenerationOutput) -> None:
        choice = self.choices[output.index]
        count = choice.token_count = output.token_count
        if self._is_kept:
            choice.keep(output)
        if output.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = output.finish_reason, output.stop_reason
            self._open -= 1
        elif count >= choice.tells_at and self.on_consumed:
            choice.tells_at = self.on_consumed[output.index](count)

    def grant(self, tokens: int) -> None:
        """So many more tokens may be generated, for a request that was opened with `credit`.

        Never waits; at its credit a request is paused where it is. Of one that was opened without
        (it has credit to its end) or has ended nothing changes. Raises `InvalidParameter`.
        """
        if type(tokens) is not int or tokens < 0:
            raise InvalidParameter("credit", f"must be a whole number from 0 on, not {tokens!r}")
        if self.on_granted is not None:
            self.on_granted(tokens)

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
    def max_model_len(self) -> int:
        """Prompt and output together have at most so many tokens."""

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        principal: str = "",
        cache_salt: str = "",
        priority: int = 0,
        streaming: bool = True,
        events: bool = False,
        credit: int | None = None,
        deadline_s: float = math.inf,
        merge_s: float = 0.0,
    ) -> AbstractAsyncContextManager[GenerationStream]:
        """Open one request; leaving the block ends it, wherever it is.

        Entering raises the `InvalidRequest` family, `Overloaded` or `NoEngine`. With `streaming`
        off the engine runs to the end whatever is consumed, and outputs come all at once.
        With `events` outputs tell what happens to the request. With `credit` no more tokens are
        generated than that, and what `stream.grant` adds to it, for each choice. What has not ended
        after `deadline_s` seconds does, by `FinishReason.DEADLINE`, for those who iterate.
        Tokens may wait up to `merge_s` to come together, which saves most of what they cost; the
        first and the last do not wait, nor any of a request that has stop strings or a deadline.
        """

    async def tokenize(self, prompt: str | ChatPrompt, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text or conversation, of any length. Raises the `InvalidRequest` family.

        No engine is asked. Cancellation waits for the end of one slice.
        """

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included. Raises `InvalidParameter`."""

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """What each token stands for, special ones too; b"" for an id that the model lacks."""

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """How the vocabulary spells each token; "" for an id that it does not have."""

    def tokenizer_info(self) -> dict[str, object]:
        """Facts about the tokenizer as JSON: special tokens, the chat template, sizes."""

    def health(self) -> Health:
        """Whether work can be taken now, and why not. Never waits."""

    def statistics(self) -> RuntimeStatistics:
        """The latest known counts of every engine and of this frontend. Never waits."""
