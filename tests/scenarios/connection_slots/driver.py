"""Driver of the books of held connections: who has each, and when its slot may be used again."""

from collections.abc import Iterable, Iterator

import attrs

from triolet.runtime.continuity.connection_slots import ConnectionSlots, HeldConnection

from ..suite import Driver, joined


@attrs.define(eq=False)
class ConnectionSlotsDriver(Driver):
    """Books of a rank with three slots; connections are named by their numbers."""

    machine: ConnectionSlots = attrs.field(factory=lambda: ConnectionSlots(3))
    held: dict[str, HeldConnection] = attrs.field(factory=dict)

    def seen(self) -> Iterator[str]:
        """Who waits for the next process."""
        self.machine.check_invariants()
        yield f"  {len(self.machine)} held; waiting: {_names(self.machine.waiting())}"

    def anew(self) -> list[str]:
        """Forget all."""
        self.machine, self.held = ConnectionSlots(3), {}
        return []

    def offer(self, connection: str) -> Iterator[str]:
        """A connection that may be passed."""
        held = self.machine.offer(int(connection))
        if held is None:
            yield "not held"
        else:
            self.held[connection] = held
            yield f"slot {held.slot}"

    def ready(self, epoch: str) -> list[str]:
        """A process is."""
        self.machine.handle_ready(int(epoch))
        return []

    def taken(self, connection: str, *, by: str) -> list[str]:
        """A process was sent it."""
        self.machine.handle_taken(self.held[connection], int(by))
        return []

    def not_taken(self, connection: str) -> Iterator[str]:
        """No process was."""
        yield f"release {_names(self.machine.handle_not_taken(self.held[connection]))}"

    def ended(self, *slots: str) -> Iterator[str]:
        """By what the process says."""
        yield f"release {_names(self.machine.handle_ended(map(int, slots)))}"

    def cleared(self, slot: str) -> list[str]:
        """The memory of a slot is."""
        self.machine.handle_cleared(int(slot))
        return []

    def stopping(self) -> list[str]:
        """The process was ordered to end."""
        self.machine.handle_stopping()
        return []

    def gone(self) -> Iterator[str]:
        """The process is."""
        yield f"release {_names(self.machine.handle_gone())}"

    def given_up(self) -> Iterator[str]:
        """There is no next one."""
        yield f"release {_names(self.machine.handle_given_up())}"


def _names(held: Iterable[HeldConnection]) -> str:
    return joined(each.connection_id for each in held) or "none"
