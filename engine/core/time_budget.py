"""Cuts chunks of prompts so that a step takes no longer than it should.

Sans-IO: one for each step, over what `CostModel` predicts. Decodes come first: their time is taken
off before the first chunk is cut, and they are never cut. Progress: the first chunk of a step has
at least `CHUNK_MIN` tokens, however long that takes; so a target that is too small slows prompts
down and stops none. Must not know blocks, order or whose tokens these are.
"""

from collections.abc import Sequence

import attrs

from .cost_model import CostModel
from .request import Request

# Fewer cost as much as one does: a step reads all weights for any of them. A block's worth.
CHUNK_MIN = 16


@attrs.define(eq=False)
class TimeBudget:
    """What is left of one step's `target_s` seconds; 0 is no target."""

    model: CostModel
    target_s: float
    # Each computes at least one token in this step.
    runnable: Sequence[Request]
    # Not known before a chunk is to be cut: most steps have none.
    _left_s: float | None = attrs.field(default=None, init=False)
    _chunks: int = attrs.field(default=0, init=False)

    def is_blind(self, steps_completed: int) -> bool:
        """Whether nothing tells yet how long a step of many tokens takes, and something soon will.

        Of a large model the largest step could exceed what is taken for a worker's death.
        """
        return bool(self.target_s) and (not steps_completed or self.model.is_learning)

    def cut(self, count: int, context: int) -> int:
        """How many of the next `count` tokens behind `context` others may be computed; 1 or more.

        One of them is paid for already if its request was `runnable`; one token more or less of a
        chunk is not looked at.
        """
        if not self.target_s or not self.model.is_ready or count == 1:
            return count
        left_s = self._look()
        least = CHUNK_MIN if not self._chunks else 1
        self._chunks += 1
        fits = min(count, self.model.tokens_within(left_s, context))
        chosen = min(count, max(least, int(fits)))
        self._left_s = left_s - self.model.seconds_more(chosen, context)
        return chosen

    def has_time(self) -> bool:
        """Whether a waiting request may begin in this step."""
        if not self.target_s or not self.model.is_ready or not self._chunks:
            return True
        return self._look() > 0.0

    def _look(self) -> float:
        if self._left_s is None:
            context = sum(request.scheduled_tokens for request in self.runnable)
            self._left_s = self.target_s - self.model.predict(len(self.runnable), context)
        return self._left_s
