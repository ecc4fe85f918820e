"""Balancer of accepted connections: the next goes to the frontend with fewest open streams.

Sans-IO: `frontend_fleet` passes on what frontends report and carries out the choice. A report is
late by nature, so connections that were passed and not yet reported count as a stream each.
"""

import attrs

from ..messages import FrontendLoad


@attrs.define(eq=False)
class _Frontend:
    load: FrontendLoad
    # Connections passed to it so far; the report says how many of them it had received.
    passed: int = 0
    # It did not take a connection in time, and has not reported since: others come first.
    silent: bool = False

    def streams(self) -> int:
        under_way = self.passed - self.load.connections_received
        # Idle connections weigh too, a little, so that they spread when nothing streams.
        return (self.load.open_streams + under_way) * 64 + self.load.open_connections

    def order(self) -> tuple[bool, bool, int]:
        # One without an engine can only refuse: it has just come up, or lost its links.
        return self.silent, self.load.engines_ready == 0, self.streams()


@attrs.define(eq=False)
class ConnectionBalancer:
    """Frontends by rank with their load; ties go to the one that got a connection longest ago."""

    _frontends: dict[int, _Frontend] = attrs.field(factory=dict, init=False)

    def handle_up(self, rank: int) -> None:
        """A frontend is ready; it has nothing yet."""
        self._frontends[rank] = _Frontend(FrontendLoad(0, 0, 0))

    def handle_gone(self, rank: int) -> None:
        """A frontend is gone, its connections with it."""
        self._frontends.pop(rank, None)

    def handle_load(self, rank: int, load: FrontendLoad) -> None:
        """A frontend's report; ignored when the frontend is gone already."""
        if rank in self._frontends:
            self._frontends[rank].load = load
            self._frontends[rank].silent = False

    def handle_not_taken(self, rank: int) -> None:
        """The frontend that was chosen last did not take its connection: it is not counted."""
        self._frontends[rank].passed -= 1
        self._frontends[rank].silent = True

    def choose(self) -> int | None:
        """The frontend for the next connection, counted as passed; None when there is none."""
        if not self._frontends:
            return None
        rank = min(self._frontends, key=lambda r: self._frontends[r].order())
        frontend = self._frontends.pop(rank)
        frontend.passed += 1
        self._frontends[rank] = frontend  # to the end of the order: next time ties pass it by
        return rank

    def open_streams(self) -> int:
        """Streams that are open or under way, over all frontends."""
        return sum(
            f.load.open_streams + f.passed - f.load.connections_received
            for f in self._frontends.values()
        )

    def is_idle(self) -> bool:
        """Whether no connection is open or under way anywhere; a drain waits for this."""
        return self.open_streams() == 0 and not any(
            f.load.open_connections for f in self._frontends.values()
        )

    def can_serve(self) -> bool:
        """Whether some frontend has an engine that takes requests."""
        return any(f.load.engines_ready for f in self._frontends.values())
