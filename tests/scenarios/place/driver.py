"""Driver of a place: what happens in one, and what it is at."""

import itertools
from collections.abc import Iterator
from random import Random

import attrs

from triolet.nurseries.tasks.supervision_policy import SupervisionPolicy
from triolet.runtime.fleet.place import FleetPlace, State
from triolet.runtime.launch.child_end import STOPPED, ChildEnd, EndKind

from ..suite import Driver


class Middle(Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        """The middle."""
        return (a + b) / 2


def policy_of(*, have_served: bool = False) -> SupervisionPolicy:
    """A policy with a single restart."""
    return SupervisionPolicy(Middle(), restart_limit=1, have_served=have_served)


@attrs.define(eq=False)
class PlaceDriver(Driver):
    """A place, the number of its next life, and how the last one ended."""

    machine: FleetPlace = attrs.field(factory=lambda: FleetPlace("engine 0", policy_of()))
    epochs: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    end: ChildEnd = STOPPED
    now: float = 0.0

    def seen(self) -> Iterator[str]:
        """What it is at."""
        place = self.machine
        place.check_invariants()
        shown = place.state.value + (" up" if place.is_up else "")
        if place.state is State.WAITING:
            shown += f" until {place.due_s:.1f}"
        shown += " for the last time" if place.is_leaving else ""
        yield f"{self.now:.1f} {shown}: {place.why}" if place.why else f"{self.now:.1f} {shown}"

    def anew(self) -> list[str]:
        """Another place."""
        self.machine, self.epochs = FleetPlace("engine 0", policy_of()), itertools.count(1)
        self.now = 0.0
        return []

    def starting(self, *, at: str = "0") -> list[str]:
        """The next life is launched."""
        self.now = float(at)
        self.machine.handle_starting(next(self.epochs))
        return []

    def ready(self, *, at: str = "0") -> list[str]:
        """It said READY."""
        self.now = float(at)
        self.machine.handle_ready(self.now)
        return []

    def failing(self, *, at: str = "0") -> list[str]:
        """It is as good as gone."""
        self.now = float(at)
        self.machine.handle_failing()
        return []

    def excused(self, *, at: str = "0") -> list[str]:
        """A request is to blame for the end of this life."""
        self.now = float(at)
        self.machine.handle_excused(self.machine.epoch)
        return []

    def gone(self, kind: str = "killed", *, at: str = "0") -> Iterator[str]:
        """Its end was seen."""
        self.now, self.end = float(at), end_of(EndKind[kind.upper()])
        if self.machine.handle_gone(self.end).kind is EndKind.REQUEST:
            yield "by a request"

    def over(self, kind: str = "", *, at: str = "0") -> list[str]:
        """All of it is gone; of a kind: before there was a process."""
        self.now = float(at)
        self.machine.handle_over(end_of(EndKind[kind.upper()]) if kind else self.end, self.now)
        return []

    def begin(self, *, at: str = "0") -> list[str]:
        """An order."""
        self.now = float(at)
        if self.machine.is_leaving:
            try:
                self.machine.begin(self.machine.policy, self.now)
            except AssertionError as error:
                return [f"refused: {error}"]
        self.machine.begin(policy_of(have_served=self.machine.has_served), self.now)
        return []

    def leaving(self, *, at: str = "0") -> list[str]:
        """The place is to be removed."""
        self.now = float(at)
        self.machine.handle_leaving()
        return []


def end_of(kind: EndKind) -> ChildEnd:
    """An end of this kind."""
    return ChildEnd(kind, "crashed", RuntimeError("it crashed"))
