"""Drain of a host: its engines take nothing new, then give away what they run, and it leaves.

Sans-IO: how many requests its engines have, and `now`, in; phases out. `HostLife` carries out.

    phase      engines are listed as                                left
    FINISHING  draining: what waits there goes elsewhere, at once   after the grace
    MOVING     emptying: what runs goes, where it goes on exactly   after `STUCK_S`
    STUCK      the same: nobody else can go on with what is left    after `MOVE_S` in all
    OVER       no more: what is left waits for an engine to come    -

Any phase is left for OVER when there is nothing to serve. Whoever leaves at once costs each stream
the time for recomputing it; in the grace, those that end need none.
"""

import enum
from collections.abc import Iterable

import attrs

from ...nurseries.tasks.task_tree import ProcessTree

# Another engine's taking over takes a message each way.
STUCK_S = 1.0
# What nobody else can take runs on for so long at most. With the grace, and the ladder by which
# engines end, below the 30 s after which Kubernetes kills.
MOVE_S = 15.0


class DrainPhase(enum.Enum):
    """Phase of a drain; its value is said to people."""

    FINISHING = "drains: its engines take nothing new, and have {requests}"
    MOVING = "drains: {requests} to go on elsewhere"
    STUCK = "drains: no other engine goes on with {requests} now, which run on for a while"
    OVER = "has drained, but for {requests}"

    def sentence(self, count: int) -> str:
        """Say it, of so many requests."""
        return self.value.format(requests=f"{count} request{'s' * (count != 1)}")


@attrs.define(eq=False)
class HostDrain:
    """Drain that began at `begun`."""

    grace_s: float
    begun: float
    phase: DrainPhase = attrs.field(default=DrainPhase.FINISHING, init=False)

    def handle_look(self, count: int, now: float) -> DrainPhase | None:
        """The engines have so many requests. Returns the new phase if it changed."""
        phase = self._phase_of(count, now - self.begun - self.grace_s)
        if phase is self.phase:
            return None
        self.phase = phase
        return phase

    def _phase_of(self, count: int, beyond_s: float) -> DrainPhase:
        if not count or beyond_s >= MOVE_S or self.phase is DrainPhase.OVER:
            return DrainPhase.OVER
        if beyond_s < 0.0:
            return DrainPhase.FINISHING
        return DrainPhase.MOVING if beyond_s < STUCK_S else DrainPhase.STUCK


def requests_in(trees: Iterable[ProcessTree]) -> int:
    """How many requests the engines among these have by their own word."""
    facts = [tree.facts for tree in trees]
    return sum(int(each.get(name, 0)) for each in facts for name in ("running", "waiting"))
