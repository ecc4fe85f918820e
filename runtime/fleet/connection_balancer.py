"""Balancer of accepted connections: the next goes to the frontend with fewest open streams.

Sans-IO. Reports are late by nature, so connections that were passed and not yet reported count as a
stream each. Ties go to the one that got a connection longest ago.
"""

from collections.abc import Collection

import attrs

from ..messages import FrontendLoad


@attrs.define(eq=False)
class _Frontend:
    """Frontend as its latest report has it, with the connections passed since."""

    load: FrontendLoad
    # Connections passed to it so far; the report says how many of them it had received.
    passed: int = 0
    # The frontend did not take a connection in time, and has not reported since: others come first.
    silent: bool = False
    # The frontend is to be restarted, and gets nothing new.
    is_leaving: bool = False

    def streams(self) -> int:
        # Idle connections weigh too, a little, so that they spread when nothing streams.
        return self.unended() * 64 + self.load.open_connections

    def is_idle(self) -> bool:
        return not self.load.open_connections and self.unended() == 0

    def unended(self) -> int:
        """Streams that are open or under way."""
        return self.load.open_streams + self.passed - self.load.connections_received

    def order(self) -> tuple[bool, bool, int]:
        # A frontend without an engine can only refuse: it has just come up, or lost its links.
        return self.silent, self.load.engines_ready == 0, self.streams()


@attrs.define(eq=False)
class ConnectionBalancer:
    """Chooses the frontend of each accepted connection, and says when all have served out."""

    _frontends: dict[int, _Frontend] = attrs.field(factory=dict, init=False)

    def handle_up(self, rank: int, passed: int = 0) -> None:
        """A frontend is ready; it has nothing yet but these connections, which it takes over."""
        self._frontends[rank] = _Frontend(FrontendLoad(0, 0, 0), passed)

    def handle_gone(self, rank: int) -> None:
        """A frontend is gone, and what it said of its connections with it."""
        self._frontends.pop(rank, None)

    @property
    def is_empty(self) -> bool:
        """Whether no frontend is there."""
        return not self._frontends

    def handle_load(self, rank: int, load: FrontendLoad) -> None:
        """A frontend's report; ignored when the frontend is gone already."""
        if rank in self._frontends:
            self._frontends[rank].load = load
            self._frontends[rank].silent = False

    def handle_not_taken(self, rank: int) -> None:
        """The frontend that was chosen last did not take its connection: it is not counted.

        Nothing changes if it is gone: it may have been found to hang meanwhile.
        """
        if rank in self._frontends:
            self._frontends[rank].passed -= 1
            self._frontends[rank].silent = True

    def handle_leaving(self, rank: int) -> bool:
        """A frontend is to be restarted and gets nothing new; False if it is gone, or knows."""
        frontend = self._frontends.get(rank)
        if frontend is None or frontend.is_leaving:
            return False
        frontend.is_leaving = True
        return True

    def choose(self) -> int | None:
        """The frontend for the next connection, counted as passed; None when there is none."""
        candidates = [rank for rank, each in self._frontends.items() if not each.is_leaving]
        if not candidates:
            return None
        rank = min(candidates, key=lambda r: self._frontends[r].order())
        frontend = self._frontends.pop(rank)
        frontend.passed += 1
        self._frontends[rank] = frontend  # to the end of the order: next time ties pass it by
        return rank

    def open_streams(self) -> int:
        """Streams that are open or under way, over all frontends."""
        return sum(each.unended() for each in self._frontends.values())

    def is_idle(self, holding: Collection[int] = ()) -> bool:
        """Whether no connection is open or under way anywhere; a drain waits for this.

        Ranks `holding` have connections: if they are gone, their successors will have them.
        """
        are_up = all(rank in self._frontends for rank in holding)
        return are_up and all(each.is_idle() for each in self._frontends.values())

    def is_idle_at(self, rank: int) -> bool:
        """Whether this frontend is there and has no connection."""
        return rank in self._frontends and self._frontends[rank].is_idle()

    def is_busy(self, rank: int) -> bool:
        """Whether this frontend is there and has one; one that is dying is not."""
        return rank in self._frontends and not self._frontends[rank].is_idle()

    def is_linked(self, engines: int) -> bool:
        """Whether every frontend has so many engines that take requests."""
        return all(each.load.engines_ready >= engines for each in self._frontends.values())

    def can_serve(self) -> bool:
        """Whether some frontend has an engine that takes requests."""
        return any(f.load.engines_ready for f in self._frontends.values())
