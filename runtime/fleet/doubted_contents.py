"""Contents that ended frontends: those in hand at a death are suspected, then passed or refused.

The shell over a `Quarantine` of what clients send (`hands`), as `EngineFleet` is of what engines
compute. A content has a single position, 1: it is read to its end, or its reader dies of it.
"""

import time
from collections.abc import Sequence

import attrs

from ..events import OnEvent, RequestRefused
from ..hands import read_hands
from ..messages import Doubted
from .quarantine import Quarantine


@attrs.define(eq=False)
class DoubtedContents:
    """Doubted contents of all frontends of a run; sent with INIT and with every snapshot."""

    on_event: OnEvent
    quarantine: Quarantine = attrs.field(factory=Quarantine, init=False)

    def handle_fault(self, rank: int, epoch: int, table: bytes) -> bool:
        """A frontend dies of itself, and `table` is of its page; whether a content is to blame."""
        contents = read_hands(table)
        if not contents:
            return False
        positions = dict.fromkeys(contents, 1)
        for content in self.quarantine.handle_death(positions, time.monotonic(), epoch).refused:
            self.on_event(RequestRefused(f"frontend {rank}", content.hex()))
        return True

    def handle_passed(self, contents: Sequence[bytes]) -> bool:
        """A frontend has read these alone to their ends; whether any is suspected no more."""
        if not contents:
            return False
        return self.quarantine.handle_passed(dict.fromkeys(contents, 1), time.monotonic())

    def snapshot(self) -> Doubted:
        """Suspects and refusals for frontends."""
        return Doubted(list(self.quarantine.suspects), dict(self.quarantine.refused))
