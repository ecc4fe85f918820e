"""What an API needs of the runtime: prompts in, streams of outputs back, health and statistics.

The protocol `Generator` is the whole face; `runtime.runtime` implements it and tests of `api` fake
it. A stream is a thin shell: it takes from its `MergedSlot`, keeps the whole answer and says how
far it was consumed, from which others derive credit. Must not know engines, sockets or HTTP.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self

import attrs

from ..engine.errors import InvalidParameter
from ..engine.messages import EngineStatistics, FinishReason, RequestEvent, RequestEventKind
from ..engine.sampling_params import SamplingParams
from .health import EngineHealth, EngineState, FrontendStatistics, Health, RuntimeStatistics
from .merged_slot import MergedSlot
from .request_output import GenerationOutput, Usage

__all__ = [
    "ChatPrompt",
    "EngineHealth",
    "EngineState",
    "EngineStatistics",
    "FinishReason",
    "FrontendStatistics",
    "GenerationOutput",
    "GenerationStream",
    "Generator",
    "Health",
    "Prompt",
    "RequestEvent",
    "RequestEventKind",
    "RuntimeStatistics",
    "Usage",
]


@attrs.frozen
class ChatPrompt:
    """A conversation; the model's chat template renders it.

    `messages` are dictionaries with `role` and `content` (other keys are the template's affair).
    `tools` are JSON schemas that the template may show to the model.
    """

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    tools: list[dict[str, Any]] | None = None


# Text, token ids, or a conversation.
Prompt = str | Sequence[int] | ChatPrompt


@attrs.define(eq=False)
class GenerationStream:
    """The outputs of one request, in order, each token once; also the whole answer so far.

    One task iterates. Iteration ends after the output with `finish_reason`, and raises
    `EngineDied` or `RequestFailed` when the request ended by that; nothing comes after. Leaving
    the block that opened the stream aborts the request if it is unfinished.
    """

    request_id: str
    prompt_token_ids: list[int]
    slot: MergedSlot
    # Called with the number of output tokens taken so far, after each piece; grants credit.
    on_consumed: Callable[[int], None] | None = None
    # Called with the number of tokens that a reader grants.
    on_granted: Callable[[int], None] | None = None

    # What came with the first token; whoever fills the slot sets it.
    cached_tokens: int = 0
    token_ids: list[int] = attrs.field(factory=list, init=False)
    finish_reason: FinishReason | None = attrs.field(default=None, init=False)
    stop_reason: str | int | None = attrs.field(default=None, init=False)
    # Pieces of the text, joined when asked for: adding to a str would be quadratic.
    _pieces: list[str] = attrs.field(factory=list, init=False)
    _ended: bool = attrs.field(default=False, init=False)

    @property
    def text(self) -> str:
        """The whole text so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def usage(self) -> Usage:
        """Token counts so far; final once the iteration has ended."""
        return Usage(len(self.prompt_token_ids), len(self.token_ids), self.cached_tokens)

    def __aiter__(self) -> Self:
        """The stream is its own iterator: pieces are given out once."""
        return self

    async def __anext__(self) -> GenerationOutput:
        """Wait for the next piece. A checkpoint; cancellation loses no token."""
        if self._ended:
            raise StopAsyncIteration
        try:
            output = await self.slot.take()
        except Exception:  # whatever the request ended with: nothing comes after it
            self._ended = True
            raise
        self._note(output)
        return output

    @property
    def has_end(self) -> bool:
        """Whether the end, or a failure, has come; it may not have been taken yet."""
        return self.slot.finished

    def follow(self, on_ready: Callable[[], None]) -> None:
        """Have `on_ready` called whenever a piece may be taken; see `MergedSlot.follow`."""
        self.slot.follow(on_ready)

    def take_nowait(self) -> GenerationOutput | None:
        """The next piece, or None while there is none and after the last. Raises as iteration."""
        if self._ended:
            return None
        try:
            output = self.slot.take_nowait()
        except Exception:
            self._ended = True
            raise
        if output is not None:
            self._note(output)
        return output

    def _note(self, output: GenerationOutput) -> None:
        self._pieces.append(output.text)
        self.token_ids.extend(output.token_ids)
        if output.finish_reason is not None:
            self._ended = True
            self.finish_reason = output.finish_reason
            self.stop_reason = output.stop_reason
        elif self.on_consumed is not None:
            self.on_consumed(output.token_count)

    def grant(self, tokens: int) -> None:
        """So many more tokens may be generated, for a request that was opened with `credit`.

        Never waits; at its credit a request is paused where it is. Of one that was opened without
        (it has credit to its end) or has ended nothing changes. Raises `InvalidParameter`.
        """
        if tokens < 0:
            raise InvalidParameter("credit", f"must be at least 0, not {tokens}")
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
    ) -> AbstractAsyncContextManager[GenerationStream]:
        """Open one request; leaving the block ends it, wherever it is.

        Entering raises the `InvalidRequest` family, `Overloaded` or `NoEngine`. With `streaming`
        off the engine runs to the end whatever is consumed, and outputs come all at once.
        With `events` outputs tell what happens to the request. With `credit` no more tokens are
        generated than that, and what `stream.grant` adds to it.
        """

    async def tokenize(self, prompt: str | ChatPrompt, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text or conversation, of any length. Raises the `InvalidRequest` family.

        No engine is asked. Cancellation waits for the end of one slice.
        """

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included. Raises `InvalidParameter`."""

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """How the vocabulary spells each token; "" for an id that it does not have."""

    def tokenizer_info(self) -> dict[str, object]:
        """Facts about the tokenizer as JSON: special tokens, the chat template, sizes."""

    def health(self) -> Health:
        """Whether work can be taken now, and why not. Never waits."""

    def statistics(self) -> RuntimeStatistics:
        """The latest known counts of every engine and of this frontend. Never waits."""
