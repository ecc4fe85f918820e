"""Logprobs of one request's tokens, kept so that they can be sent again.

Sans-IO: bytes. One log is of the output, another of the prompt; positions are their indices. What
comes twice (a preempted prompt is computed again) is kept once: the executor's bits are the same.
Bounded by what `check_request` lets a request ask for.
"""

import attrs

from ..messages import TokenLogprobs
from ..step_messages import RowLogprobs

# Bytes of an id, a logprob or a rank.
ITEM_BYTES = 4


@attrs.define(eq=False)
class LogprobLog:
    """Positions from `first` on, without a gap; `width` columns each, 0 while there is none."""

    first: int
    width: int = attrs.field(default=0, init=False)
    _token_ids: bytearray = attrs.field(factory=bytearray, init=False)
    _logprobs: bytearray = attrs.field(factory=bytearray, init=False)
    _ranks: bytearray = attrs.field(factory=bytearray, init=False)

    def __len__(self) -> int:
        """How many positions there are."""
        return len(self._ranks) // ITEM_BYTES

    @property
    def size(self) -> int:
        """Size of the arrays, in bytes."""
        return len(self._token_ids) + len(self._logprobs) + len(self._ranks)

    def append(self, rows: RowLogprobs, first: int) -> None:
        """Take the arrays of a step, whose first position is `first` here."""
        known = self.first + len(self) - first
        assert known >= 0, f"positions {self.first + len(self)} to {first} are missing"
        self.width = rows.width
        skipped = known * ITEM_BYTES
        self._token_ids += rows.token_ids[skipped * rows.width :]
        self._logprobs += rows.logprobs[skipped * rows.width :]
        self._ranks += rows.ranks[skipped:]

    def since(self, index: int) -> TokenLogprobs | None:
        """Logprobs from position `index` on; None if there are none."""
        skipped = max(0, index - self.first) * ITEM_BYTES
        if skipped >= len(self._ranks):
            return None
        return TokenLogprobs(
            self.width,
            bytes(self._token_ids[skipped * self.width :]),
            bytes(self._logprobs[skipped * self.width :]),
            bytes(self._ranks[skipped:]),
        )

    def check_invariants(self) -> None:
        """The arrays agree in length."""
        assert len(self._token_ids) == len(self._logprobs) == len(self._ranks) * self.width


# Logs of the output, and of the prompt.
Logs = tuple[LogprobLog | None, LogprobLog | None]


def logprobs_from(logs: Logs, index: int) -> tuple[TokenLogprobs | None, TokenLogprobs | None]:
    """Logprobs of output tokens from `index` on, and the prompt's with the first."""
    output, prompt = logs
    return (
        None if output is None else output.since(index),
        None if prompt is None or index > 0 else prompt.since(1),
    )
