"""Evidence against requests: a fleet tells it wherever the run's quarantine is, here or elsewhere.

A run has one quarantine, or a request would be refused only after it has ended engines on each
machine. So a fleet gives evidence to an `Evidence`: where the root is, `JudgedHere` asks the
quarantine and lists what it finds; a fleet of another machine sends it to its head, which hands it
to that. A death is told before the membership by which its engine is gone.
"""

from collections.abc import Callable, Set
from typing import Protocol

import attrs
import trio

from ...engine.batch_table import read_batches, read_forms
from ..events import OnEvent, RequestRefused
from ..launch.child import Suspected
from ..messages import EngineMembership
from .membership import EngineDirectory
from .quarantine import Quarantine


def positions_in(event: Suspected, rows: int) -> dict[bytes, int]:
    """Contents that were at work in an engine with so many rows, and their positions.

    If the engine's own process ended while a grammar was at work in it, that form is, alone.

    Those of two steps that were in flight died together: which of them is not known.
    """
    positions = read_forms(event.table, rows) if event.is_itself else {}
    for batch in [] if positions else read_batches(event.table, rows):
        for row in batch:
            positions[row.content] = max(row.position, positions.get(row.content, 0))
    return positions


class Evidence(Protocol):
    """Place where evidence goes."""

    def handle_death(self, positions: dict[bytes, int], epoch: int) -> None:
        """A step with these contents, at these positions, may have ended this life of an engine."""

    def handle_passed(self, positions: dict[bytes, int]) -> None:
        """These contents ran alone up to here."""


@attrs.define(eq=False)
class JudgedHere:
    """Evidence that the quarantine of this process judges."""

    quarantine: Quarantine
    directory: EngineDirectory
    on_membership: Callable[[EngineMembership], None]
    on_event: OnEvent
    # Hears of lives that requests ended, of engines on whichever machine.
    on_explained: Callable[[Set[int]], None]

    def handle_death(self, positions: dict[bytes, int], epoch: int) -> None:
        """Suspects are told with the next snapshot, by which the engine is gone."""
        found = self.quarantine.handle_death(positions, trio.current_time(), epoch)
        for content in found.refused:
            name = f"engine {self.directory.rank_of(epoch)}"
            self.on_event(RequestRefused(name, content.hex()))
        self._list()
        self.on_explained(found.explained)

    def handle_passed(self, positions: dict[bytes, int]) -> None:
        """Frontends need not have the same ones run alone any more."""
        if self.quarantine.handle_passed(positions, trio.current_time()):
            self.on_membership(self._list())

    def _list(self) -> EngineMembership:
        suspects, refused = self.quarantine.suspects, self.quarantine.refused
        return self.directory.handle_quarantine(suspects, refused)
