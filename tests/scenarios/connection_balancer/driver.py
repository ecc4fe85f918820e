"""Driver of the balancer of connections: what frontends report in, who gets the next one out."""

from collections.abc import Iterator

import attrs

from triolet.runtime.fleet.connection_balancer import ConnectionBalancer
from triolet.runtime.messages import FrontendLoad

from ..suite import Driver, joined


@attrs.define(eq=False)
class ConnectionBalancerDriver(Driver):
    """A balancer and what it knows of the whole."""

    machine: ConnectionBalancer = attrs.field(factory=ConnectionBalancer)

    def seen(self) -> Iterator[str]:
        """What is open, and whether it can serve."""
        idle = ", idle" * self.machine.is_idle()
        serves = ", can serve" * self.machine.can_serve()
        yield f"  {self.machine.open_streams()} open{idle}{serves}"

    def anew(self, *ranks: str) -> list[str]:
        """Another one, with these frontends."""
        self.machine = ConnectionBalancer()
        for rank in ranks:
            self.machine.handle_up(int(rank))
        return []

    def load(
        self, rank: str, *, connections: str = "0", streams: str = "0", received: str = "0",
        engines: str = "0",
    ) -> list[str]:  # fmt: skip
        """A frontend reports."""
        counts = int(connections), int(streams), int(received)
        self.machine.handle_load(int(rank), FrontendLoad(*counts, engines_ready=int(engines)))
        return []

    def choose(self, count: str = "1") -> Iterator[str]:
        """Who gets the next ones."""
        yield f"to {joined(self.machine.choose() for _ in range(int(count)))}"

    def gone(self, rank: str) -> list[str]:
        """A frontend is."""
        self.machine.handle_gone(int(rank))
        return []

    def not_taken(self, rank: str) -> list[str]:
        """A frontend did not take its connection."""
        self.machine.handle_not_taken(int(rank))
        return []

    def linked(self, engines: str) -> Iterator[str]:
        """Whether every frontend has so many engines."""
        yield "linked" if self.machine.is_linked(int(engines)) else "not linked"
