"""Connection slots of one frontend rank: which connections are held for it, and who has them.

Sans-IO; `held_connections` has the descriptors and the slots' memory. A connection is held from
before a process is asked to take it, so that the death of that process finds it in the books, until
the process says that it has ended. A slot that was used is another connection's only when its
memory was cleared.
"""

import enum
from collections.abc import Iterable

import attrs

from ...transports.takeover.memory import SLOTS


class HeldPhase(enum.Enum):
    """Phase of a held connection."""

    OFFERED = enum.auto()  # the first process is asked to take it; if it does not, another one is
    SERVED = enum.auto()  # the present process has it
    WAITING = enum.auto()  # its process died, and the next one is to take it
    ENDING = enum.auto()  # its process was ordered to end, and ends it in order


@attrs.define(eq=False)
class HeldConnection:
    """Accepted connection, with the slot that is its own while it is held."""

    connection_id: int
    slot: int
    phase: HeldPhase = attrs.field(default=HeldPhase.OFFERED, init=False)
    # How many lives may have died of it when it was passed last: see `ConnectionSlot.lives`.
    lives: int = attrs.field(default=0, init=False)


@attrs.define(eq=False)
class ConnectionSlots:
    """The books of one rank.

    Methods that return connections have released them: their descriptors are to be closed, their
    slots' memory to be cleared.
    """

    count: int = SLOTS
    # Epoch of the process that is READY and has the slots' memory; 0: none.
    _epoch: int = attrs.field(default=0, init=False)
    # Slots that are empty; the others are held, or to be cleared.
    _free: list[int] = attrs.field(init=False)
    # {slot: its connection}
    _held: dict[int, HeldConnection] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(reversed(range(self.count)))

    def __len__(self) -> int:
        return len(self._held)

    def offer(self, connection_id: int) -> HeldConnection | None:
        """Hold a connection that the process is about to be asked to take; None without a slot."""
        if not self._free or not self._epoch:
            return None
        held = HeldConnection(connection_id, self._free.pop())
        self._held[held.slot] = held
        return held

    def waiting(self) -> list[HeldConnection]:
        """Connections to be passed to the next process, or about to be; oldest first."""
        return [each for each in self._held.values() if each.phase is HeldPhase.WAITING]

    def handle_ready(self, epoch: int) -> None:
        """A process takes connections: those that wait are to be passed to it."""
        self._epoch = epoch

    def handle_taken(self, held: HeldConnection, epoch: int) -> None:
        """The process of this epoch was sent it: perhaps it is dead by now, or has ended it."""
        is_there = self._epoch == epoch
        held.phase = HeldPhase.SERVED if is_there else HeldPhase.WAITING

    def handle_not_taken(self, held: HeldConnection) -> list[HeldConnection]:
        """The process that was offered it was not sent it."""
        return self.handle_ended([held.slot]) if self._held.get(held.slot) is held else []

    def handle_ended(self, slots: Iterable[int]) -> list[HeldConnection]:
        """A process has ended the connections of these slots. Harmless for those that are none."""
        return [self._held.pop(slot) for slot in slots if slot in self._held]

    def handle_stopping(self) -> None:
        """The process was ordered to end: it ends what it has in order."""
        for each in self._held.values():
            if each.phase is HeldPhase.SERVED:
                each.phase = HeldPhase.ENDING

    def handle_gone(self) -> list[HeldConnection]:
        """The process has ended; what it served waits, unless it was ordered to."""
        self._epoch = 0
        for each in self._held.values():
            if each.phase is HeldPhase.SERVED:
                each.phase = HeldPhase.WAITING
        ending = (slot for slot, each in self._held.items() if each.phase is HeldPhase.ENDING)
        return self.handle_ended(list(ending))

    def handle_given_up(self) -> list[HeldConnection]:
        """There is no next process, or it cannot take them."""
        return self.handle_ended(list(self._held))

    def handle_cleared(self, slot: int) -> None:
        """The memory of a released slot is empty."""
        self._free.append(slot)

    def check_invariants(self) -> None:
        """Assert the invariants; for fuzzers and tests."""
        slots = [*self._free, *self._held]
        assert len(set(slots)) == len(slots)
        assert set(slots) <= set(range(self.count))
        assert all(slot == each.slot for slot, each in self._held.items())
        served = [each for each in self._held.values() if each.phase is HeldPhase.SERVED]
        assert self._epoch or not served
