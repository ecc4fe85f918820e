"""Decides how early the next step is planned while one computes: no earlier than need be.

Sans-IO: times and a prediction in, a time out. What is planned is fixed: a request that comes
afterwards waits for the step after. So a long step is not followed at once by the plan of the next
one, but as late as leaves time to plan it and hand it over before the workers want it. A prediction
that is too long costs that time and no more, as a result is waited for as well. Must not know what
a step computes.
"""

import math

import attrs

# Planning, encoding and handing over takes some 0.3 ms, and a busy machine wakes nobody in time.
LEAD_S = 0.002
# So much of the predicted time is waited for: steps of one kind vary, on a shared machine the more.
SHARE = 0.75
# A shorter wait is not worth waking up for once more, which costs an engine some 0.2 ms of its
# core, or of one that computes: nobody notices to be in a step so much later.
HOLD_MIN_S = 0.005


@attrs.define(eq=False)
class StepPace:
    """When the step that computes was begun, and so when to plan the next."""

    _hold_until: float = attrs.field(default=-math.inf, init=False)
    _holds: bool = attrs.field(default=False, init=False)

    def begin(self, predicted_s: float, now: float) -> None:
        """The workers begin a step, as far as is known here, which takes so long; 0: not known."""
        wait_s = SHARE * predicted_s - LEAD_S
        self._hold_until = now + wait_s if wait_s >= HOLD_MIN_S else -math.inf
        self._holds = False

    def holds(self, now: float) -> bool:
        """Whether it is too early to plan another step while one computes."""
        self._holds = now < self._hold_until
        return self._holds

    def next_deadline(self) -> float:
        """When to ask again, if the last answer was yes and no result comes before; inf if not."""
        return self._hold_until if self._holds else math.inf
