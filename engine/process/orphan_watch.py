"""Orphan watch: when to abort the requests of a frontend that cannot be reached.

Sans-IO: `engine.server` reports links that go down and come up, and carries out what falls due.
A broken link alone ends nothing: the frontend may come back with a new generation of the link, or
a successor may adopt its requests. Without a link for `orphan_s` seconds its requests are aborted.
"""

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

import attrs

F = TypeVar("F", bound=Hashable)


@attrs.define(eq=False)
class OrphanWatch(Generic[F]):
    """Frontends without a link, and when each is given up."""

    orphan_s: float = attrs.field(validator=attrs.validators.gt(0))

    # {frontend: time at which it is given up}; a frontend with a link up is not in here.
    _deadlines: dict[F, float] = attrs.field(factory=dict, init=False)

    def handle_down(self, frontend: F, now: float) -> None:
        """The link is down; the first report counts, so that repeats do not extend the wait."""
        self._deadlines.setdefault(frontend, now + self.orphan_s)

    def handle_up(self, frontend: F) -> None:
        """The link is up again (or the frontend was given up by other means)."""
        self._deadlines.pop(frontend, None)

    def next_deadline(self) -> float:
        """When `handle_timeout` is due; infinity when every frontend has its link."""
        return min(self._deadlines.values(), default=math.inf)

    def handle_timeout(self, now: float) -> list[F]:
        """The frontends to give up now. Harmless when called early."""
        due = [frontend for frontend, deadline in self._deadlines.items() if deadline <= now]
        for frontend in due:
            del self._deadlines[frontend]
        return due
