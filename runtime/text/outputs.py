"""Outputs of a request as its reader gets them: new tokens with text, choices, usage.

Apart from `generation`, so that the machines below the stream can make these without knowing it.
Engine messages become these in `output_processor`. Sans-IO: plain data.
"""

import attrs

from ...engine.messages import FinishReason, RequestEvent
from .logprobs import Logprobs, join


# Not frozen, though none is ever changed: a frozen class takes three times as long to make (0.6 µs
# more), and there is one for each token that is taken alone.
@attrs.define
class GenerationOutput:
    """New tokens of one choice, and the text that they complete.

    `text` may be "" while a character or a possible stop string is incomplete. `texts`, where one
    token is not all, has the part of each of `token_ids`, so that event numbers do not depend on
    how many came together; one more is what the end completed. `token_count` is
    the number of output tokens so far, these included; event numbers derive from it.
    `finish_reason` is set in the last output of a choice and only there; `stop_reason` is then
    the stop string or the stop token's id that ended it, None for the end of sequence.
    `events`, for those who asked for them, happened before these tokens; an output may have events
    and no token. `logprobs`, if asked for, has one entry for each of `token_ids`.
    """

    text: str
    token_ids: list[int]
    token_count: int
    index: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    events: tuple[RequestEvent, ...] = ()
    logprobs: Logprobs | None = None
    texts: list[str] | None = attrs.field(default=None, eq=False)

    @property
    def parts(self) -> list[str]:
        """The text of each token; one more is what the end completed."""
        if self.texts is not None:
            return self.texts
        if len(self.token_ids) < 2:
            return [self.text] if self.text or self.token_ids else []
        return [*[""] * (len(self.token_ids) - 1), self.text]


@attrs.define(eq=False)
class Choice:
    """One answer to a prompt, as far as it was taken."""

    index: int
    # All tokens of this choice, in the ledger's own list; the first `token_count` were taken.
    _written: list[int] = attrs.field(repr=False)
    token_count: int = attrs.field(default=0, init=False)
    finish_reason: FinishReason | None = attrs.field(default=None, init=False)
    stop_reason: str | int | None = attrs.field(default=None, init=False)
    # From this count on the next one is reported, for credit.
    reports_at: float = attrs.field(default=0, init=False)
    # Pieces of the text, joined when asked for: adding to a str would be quadratic.
    _pieces: list[str] = attrs.field(factory=list, init=False)
    _logprobs: list[Logprobs] = attrs.field(factory=list, init=False)

    def __eq__(self, other: object) -> bool:
        """The same tokens and the same end."""
        if not isinstance(other, Choice):
            return NotImplemented
        ends = (other.finish_reason, other.stop_reason)
        is_same_end = (self.finish_reason, self.stop_reason) == ends
        return is_same_end and (self.index, self.token_ids) == (other.index, other.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """All tokens that were taken."""
        return self._written[: self.token_count]

    @property
    def text(self) -> str:
        """The whole text so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def logprobs(self) -> Logprobs | None:
        """One for each of `token_ids`, if asked for."""
        whole = join(self._logprobs)
        if whole is not None:
            self._logprobs = [whole]
        return whole

    def keep(self, output: GenerationOutput) -> None:
        """The next piece."""
        self._pieces.append(output.text)
        if output.logprobs is not None:
            self._logprobs.append(output.logprobs)


@attrs.frozen
class Usage:
    """Token counts of one request; `cached_tokens` of the prompt needed no computing."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and output together, as OpenAI's usage counts."""
        return self.prompt_tokens + self.output_tokens
