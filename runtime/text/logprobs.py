"""Logprobs of successive tokens as a reader gets them: arrays, looked at one by one.

They are the model's own, before any parameter was applied. They stay arrays until they are looked
at, as objects cost twenty times the memory. Sans-IO: plain data.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Self

import attrs

from ...engine.messages import TokenLogprobs


@attrs.frozen
class TokenLogprob:
    """One token: its natural logarithm of probability, its rank (1: the most likely one), and the
    most likely tokens with theirs, in order.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@attrs.frozen
class Logprobs:
    """Of successive tokens; position-major, `width` columns each, the token itself first."""

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
        """What an engine sent, little endian, as we are. Raises `ValueError` for odd lengths."""
        return cls(
            found.width,
            array("i", found.token_ids),
            array("f", found.logprobs),
            array("i", found.ranks),
        )

    def __len__(self) -> int:
        """How many tokens."""
        return len(self.ranks)

    @property
    def size_bytes(self) -> int:
        """What the arrays take."""
        return 4 * (2 * len(self.token_ids) + len(self.ranks))

    def __getitem__(self, index: int) -> TokenLogprob:
        """One token's. Raises `IndexError`."""
        place = range(len(self))[index]
        begin, end = place * self.width, (place + 1) * self.width
        ids, values = self.token_ids[begin:end], self.logprobs[begin:end]
        top = tuple(zip(ids[1:], values[1:], strict=True))
        return TokenLogprob(ids[0], values[0], self.ranks[place], top)

    def between(self, first: int, stop: int) -> "Logprobs":
        """Those of the tokens `[first, stop)`."""
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
    """One that says what these say one after the other; None if none says anything."""
    there = [part for part in parts if part is not None]
    if len(there) < 2:
        return there[0] if there else None
    whole = there[0].between(0, len(there[0]))
    for part in there[1:]:
        whole.extend(part)
    return whole
