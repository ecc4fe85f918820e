"""Decides when a spare process is started, so that the next life of some child finds it waiting.

Sans-IO: what happened and `now` in, a time out. `spares` carries it out. A spare must never
compete with what is needed now: it is due only when every process of the run has been ready for a
while, at the start as after a restart. One that is lost while it waits is nobody's death: it is
replaced, after a delay that doubles as long as spares do not last. Must not know processes.
"""

import math

import attrs

# What was ready a moment ago has work waiting for it. Pulled out of the air.
CALM_S = 1.0
# From the loss of a spare to the start of the next: a machine that cannot keep one is left alone.
DELAY_MIN_S = 1.0
DELAY_MAX_S = 60.0
# A spare that lasted so long could be kept: the delay begins anew.
LASTED_S = 60.0


@attrs.define(eq=False)
class Unrest:
    """Which children of a run are wanted, and not ready; shared by all its fleets.

    `calm_since_s` is when the last of them became ready, infinite while there is one.
    """

    calm_since_s: float = math.inf
    _missing: set[str] = attrs.field(factory=set, init=False)

    def handle_missing(self, child: str) -> None:
        """`child` is to be brought up, or has died."""
        self._missing.add(child)
        self.calm_since_s = math.inf

    def handle_settled(self, child: str, now: float) -> bool:
        """`child` is ready, or given up. Whether all is calm by that; nothing if it was."""
        if child not in self._missing:
            return False
        self._missing.remove(child)
        if self._missing:
            return False
        self.calm_since_s = now
        return True

    def check_invariants(self) -> None:
        """Calm is when nobody is missing, once there was somebody."""
        assert not (self._missing and self.calm_since_s < math.inf)


@attrs.define(eq=False)
class SparePolicy:
    """The place of one spare: empty, or with one that was started at `since_s`."""

    calm_s: float = attrs.field(default=CALM_S, validator=attrs.validators.ge(0))
    # When the present one was started; None while there is none.
    since_s: float | None = attrs.field(default=None, init=False)
    # How many were lost in a row; each doubles the delay.
    losses: int = attrs.field(default=0, init=False)
    _not_before_s: float = attrs.field(default=-math.inf, init=False)

    def next_start(self, calm_since_s: float) -> float:
        """When a spare is due; infinite if there is one, or no calm."""
        if self.since_s is not None:
            return math.inf
        return max(calm_since_s + self.calm_s, self._not_before_s)

    def handle_started(self, now: float) -> None:
        """There is one."""
        assert self.since_s is None, "a place is for one"
        self.since_s = now

    def handle_taken(self) -> None:
        """It was of use; the next one needs no delay."""
        assert self.since_s is not None
        self.since_s = None
        self.losses = 0

    def handle_lost(self, now: float) -> None:
        """It died, hung, or did not come up."""
        assert self.since_s is not None
        lasted_s, self.since_s = now - self.since_s, None
        self.losses = 1 if lasted_s >= LASTED_S else self.losses + 1
        # Bounded before the power is taken.
        doublings = min(self.losses - 1, int(math.log2(DELAY_MAX_S / DELAY_MIN_S)) + 1)
        self._not_before_s = now + min(DELAY_MAX_S, DELAY_MIN_S * 2.0**doublings)

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        assert self.losses >= 0
        assert self.since_s is None or self.next_start(0.0) == math.inf
