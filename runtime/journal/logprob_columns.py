"""Logprobs of a choice's tokens as a journal keeps them: columns of bytes.

Engines send them with each token. An object for each would take more room than its numbers, and a
successor would look at as many as there are old tokens before it can say what goes on. Sans-IO:
plain data.
"""

from collections.abc import Iterable
from itertools import pairwise

import attrs

from ...engine.messages import TokenLogprobs

# Bytes of an id, a logprob or a rank.
_ITEM_BYTES = 4


@attrs.define
class _Run:
    """Growing `TokenLogprobs`."""

    width: int
    token_ids: bytearray = attrs.field(factory=bytearray)
    logprobs: bytearray = attrs.field(factory=bytearray)
    ranks: bytearray = attrs.field(factory=bytearray)

    def __len__(self) -> int:
        return len(self.ranks) // _ITEM_BYTES

    def between(self, first: int, stop: int) -> TokenLogprobs:
        begin, end = first * _ITEM_BYTES, stop * _ITEM_BYTES
        columns = slice(begin * self.width, end * self.width)
        ids, logprobs = bytes(self.token_ids[columns]), bytes(self.logprobs[columns])
        return TokenLogprobs(self.width, ids, logprobs, bytes(self.ranks[begin:end]))


@attrs.define
class LogprobColumns:
    """Logprobs of successive tokens."""

    # A run for each width in turn: a request has one.
    _runs: list[_Run] = attrs.field(factory=list)

    @classmethod
    def of(cls, parts: Iterable[TokenLogprobs]) -> "LogprobColumns":
        """Join these, one after the other."""
        columns = cls()
        for part in parts:
            columns.append(part)
        return columns

    def __len__(self) -> int:
        """How many tokens."""
        return sum(map(len, self._runs))

    def append(self, more: TokenLogprobs) -> None:
        """Append the logprobs of the next tokens."""
        if not self._runs or self._runs[-1].width != more.width:
            self._runs.append(_Run(more.width))
        run = self._runs[-1]
        run.token_ids += more.token_ids
        run.logprobs += more.logprobs
        run.ranks += more.ranks

    def parts(self, cut: int | None = None) -> list[tuple[int, TokenLogprobs]]:
        """Parts with the count of their tokens, as few as may be; the token at `cut` begins one."""
        found, begin = [], 0
        for run in self._runs:
            end = begin + len(run)
            cuts = [begin, cut, end] if cut is not None and begin < cut < end else [begin, end]
            for first, stop in pairwise(cuts):
                found.append((stop - first, run.between(first - begin, stop - begin)))
            begin = end
        return found
