"""Outputs of a request as its reader gets them: new tokens with text, logprobs, choices, usage.

Engine messages become these in `output_processor`. Logprobs are the model's own, before any
parameter was applied; they stay arrays until they are looked at, as objects cost twenty times the
memory. Sans-IO: plain data.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Self

import attrs

from ...engine.messages import FinishReason, RequestEvent, TokenLogprobs


@attrs.frozen
class TokenLogprob:
    """Token with its natural logarithm of probability, its rank (1: the most likely one), and the
    most likely tokens with theirs, in order."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@attrs.frozen(repr=False)
class Logprobs:
    """Logprobs of successive tokens; position-major, `width` columns, the token itself first."""

    width: int
    token_ids: "array[int]"
    logprobs: "array[float]"
    ranks: "array[int]"

    def __attrs_post_init__(self) -> None:
        items = len(self.ranks) * self.width
        if self.width < 1 or not len(self.token_ids) == len(self.logprobs) == items:
            raise ValueError("arrays differ in length")

    @classmethod
    def of(cls, found: TokenLogprobs) -> Self:
        """Convert an engine's, little endian, as we are. Raises `ValueError` for odd lengths."""
        return cls(
            found.width,
            array("i", found.token_ids),
            array("f", found.logprobs),
            array("i", found.ranks),
        )

    def __len__(self) -> int:
        """How many tokens."""
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"<Logprobs of {len(self)} tokens>"

    @property
    def size_bytes(self) -> int:
        """Size of the arrays."""
        return 4 * (2 * len(self.token_ids) + len(self.ranks))

    def __getitem__(self, index: int) -> TokenLogprob:
        """Logprob of one token. Raises `IndexError`."""
        place = range(len(self))[index]
        begin, end = place * self.width, (place + 1) * self.width
        ids, values = self.token_ids[begin:end], self.logprobs[begin:end]
        top = tuple(zip(ids[1:], values[1:], strict=True))
        return TokenLogprob(ids[0], values[0], self.ranks[place], top)

    def between(self, first: int, stop: int) -> "Logprobs":
        """Logprobs of the tokens `[first, stop)`."""
        items = slice(first * self.width, stop * self.width)
        return Logprobs(
            self.width, self.token_ids[items], self.logprobs[items], self.ranks[first:stop]
        )

    def extend(self, more: "Logprobs") -> None:
        """Add those of the next tokens."""
        assert more.width == self.width, "one request, one width"
        self.token_ids.extend(more.token_ids)
        self.logprobs.extend(more.logprobs)
        self.ranks.extend(more.ranks)

    def __iter__(self) -> Iterator[TokenLogprob]:
        """Each token's, in order."""
        return (self[index] for index in range(len(self)))


def join(parts: Sequence[Logprobs | None]) -> Logprobs | None:
    """Join parts, one after the other; None if all are None."""
    there = [part for part in parts if part is not None]
    if len(there) < 2:
        return there[0] if there else None
    whole = there[0].between(0, len(there[0]))
    for part in there[1:]:
        whole.extend(part)
    return whole


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
    def inexact_from(self) -> int | None:
        """The index of its first token, if another numerics id has computed that."""
        if not self.events or all(event.exact for event in self.events):
            return None
        return self.token_count - len(self.token_ids)

    @property
    def parts(self) -> list[str]:
        """The text of each token; one more is what the end completed."""
        if self.texts is not None:
            return self.texts
        if len(self.token_ids) < 2:
            return [self.text] if self.text or self.token_ids else []
        return [*[""] * (len(self.token_ids) - 1), self.text]


@attrs.define(eq=False, repr=False)
class GenerationChoice:
    """Answer to a prompt, as far as it was taken."""

    index: int
    # Tokens of this choice, in the ledger's own list; the first `token_count` were taken.
    _written: list[int]
    token_count: int = attrs.field(default=0, init=False)
    finish_reason: FinishReason | None = attrs.field(default=None, init=False)
    stop_reason: str | int | None = attrs.field(default=None, init=False)
    # Index of the first token that another numerics id has computed, if any (`inexact_ok`).
    inexact_from: int | None = attrs.field(default=None, init=False)
    # Count from which on the next one is reported, for credit.
    reports_at: float = attrs.field(default=0, init=False)
    # Pieces of the text, joined when asked for: adding to a str would be quadratic.
    _pieces: list[str] = attrs.field(factory=list, init=False)
    _logprobs: list[Logprobs] = attrs.field(factory=list, init=False)

    def __eq__(self, other: object) -> bool:
        """The same tokens and the same end."""
        if not isinstance(other, GenerationChoice):
            return NotImplemented
        ends = (other.finish_reason, other.stop_reason)
        is_same_end = (self.finish_reason, self.stop_reason) == ends
        return is_same_end and (self.index, self.token_ids) == (other.index, other.token_ids)

    def __repr__(self) -> str:
        reason = None if self.finish_reason is None else str(self.finish_reason)
        return f"GenerationChoice(index={self.index}, text={self.text!r}, finish_reason={reason!r})"

    @property
    def token_ids(self) -> list[int]:
        """Tokens that were taken."""
        return self._written[: self.token_count]

    @property
    def text(self) -> str:
        """The whole text so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def logprobs(self) -> Logprobs | None:
        """Logprobs of `token_ids`, if asked for."""
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
    """Token counts of one request; `cached_tokens` of the prompt needed no computing.

    `reasoning_tokens` of the output are reasoning; None where that is not parted off.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and output together, as OpenAI's usage counts."""
        return self.prompt_tokens + self.output_tokens
