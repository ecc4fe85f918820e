"""Client connections that outlive their frontend: the root's duplicate of each, and its slot.

An estate, and the shell over `ConnectionSlots`. While the duplicate is open, the death of a
frontend sends its clients nothing: the next process of the rank gets the same connections with the
same slots, and goes on. The kernel ends a connection with its last descriptor, so a duplicate is
closed as soon as a frontend says that it has ended one, or there is no next process.
"""

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import trio

from ...transports.control.passed_fds import close_fds
from ...transports.takeover.memory import (
    create_slot_memory,
    free_slot,
    map_slots,
    read_lives,
    write_lives,
)
from ...transports.takeover.tcp import (
    SOCKET_CALLS,
    SocketCalls,
    TcpCountsUnknown,
    is_open,
    make_countable,
)
from ..launch.child import Child, GivenUp, Gone, PlaceEvent
from ..launch.child_end import EndKind
from ..messages import PassConnection
from .connection_slots import ConnectionSlots, HeldConnection, HeldPhase
from .estate import not_made
from .unavailable import end_unavailable


@attrs.define(eq=False)
class HeldConnections:
    """Connections of all frontends of one server, by rank: see `Estate`."""

    calls: SocketCalls = SOCKET_CALLS
    # Why the connection that was offered last is not held, if it was to be.
    _unheld: str = attrs.field(default="", init=False)
    # {rank: its slots' memory}, made once; empty after `close`.
    _memory: dict[int, int] = attrs.field(factory=dict, init=False)
    # {rank: its books}
    _slots: dict[int, ConnectionSlots] = attrs.field(factory=dict, init=False)
    # The duplicate of each.
    _sockets: dict[HeldConnection, socket.socket] = attrs.field(factory=dict, init=False)

    @contextmanager
    def open(self, count: int) -> Iterator[None]:
        """Connections that are held at the end are ended."""
        try:
            yield
        finally:
            for rank in list(self._slots):
                self.handle_given_up(rank)
            close_fds(self._memory.values())
            self._memory.clear()

    def handle_starting(self, rank: int, epoch: int) -> Mapping[str, int]:
        """Slots for this rank, made where there are none. Raises `BootRefused`."""
        if rank not in self._memory:
            try:
                self._memory[rank] = create_slot_memory(rank)
            except OSError as error:
                raise not_made("slots for connections", f"frontend {rank}", error) from error
            self._slots[rank] = ConnectionSlots()
        return {"connections": self._memory[rank]}

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """Keep what a process that is gone had, unless none is to come.

        Streams of one that hangs in the kernel wait for the end of that.
        """
        match event:
            case Gone(end):
                self._handle_gone(rank, is_own_fault=end.is_own_fault)
            case GivenUp(end) if end.kind is not EndKind.STUCK:
                self.handle_given_up(rank)

    def memory(self, rank: int) -> int | None:
        """The descriptor of the rank's slots, if it has any; it stays ours."""
        return self._memory.get(rank)

    def ranks(self) -> set[int]:
        """Ranks for which connections are held."""
        return {rank for rank, slots in self._slots.items() if len(slots)}

    def offer(self, rank: int, fd: int, connection_id: int) -> HeldConnection | None:
        """Hold a duplicate of an accepted connection, about to be passed to this rank.

        None where it ends with its process: that has no slots, or none is free, it is no TCP
        connection, or too many descriptors are open; `message` says why, if it was to be held.
        """
        self._unheld = ""
        if rank not in self._memory:
            return None
        descriptors_max = self.calls.descriptors_max()
        too_few = f"the server may open {descriptors_max} descriptors only (ulimit -n)"
        try:
            connection = self.calls.duplicate(fd)
        except OSError:
            self._unheld = too_few
            return None
        try:
            make_countable(connection)
            # The lowest number that is free: half of them are for processes and new connections.
            if connection.fileno() >= descriptors_max // 2:
                self._unheld = too_few
            elif (held := self._slots[rank].offer(connection_id)) is None:
                self._unheld = "all slots are taken"
            else:
                self._sockets[held] = connection
                return held
        except (TcpCountsUnknown, OSError):
            pass  # it may have been reset by now, or is no TCP connection
        connection.close()
        return None

    def message(self, connection_id: int, held: HeldConnection | None) -> PassConnection:
        """Message that passes the connection that was offered last."""
        slot = -1 if held is None else held.slot
        return PassConnection(connection_id, slot, unheld=self._unheld)

    def handle_ready(self, rank: int, epoch: int) -> list[HeldConnection]:
        """A process of this rank has its slots; returns connections that it is to take over."""
        if rank not in self._slots:
            return []
        self._slots[rank].handle_ready(epoch)
        return self._slots[rank].waiting()

    def handle_taken(self, rank: int, held: HeldConnection, epoch: int) -> None:
        """Note that a connection was sent to the process of this epoch."""
        self._slots[rank].handle_taken(held, epoch)

    def handle_not_taken(self, rank: int, held: HeldConnection) -> None:
        """Note that a connection was not sent to the process that it was offered to."""
        self._release(rank, self._slots[rank].handle_not_taken(held))

    def handle_ended(self, rank: int, ended: Iterable[int]) -> None:
        """The process of this rank has ended the connections of these slots."""
        if rank in self._slots:
            self._release(rank, self._slots[rank].handle_ended(ended))

    def handle_stopping(self, rank: int) -> None:
        """The process of this rank is about to be stopped in order."""
        if rank in self._slots:
            self._slots[rank].handle_stopping()

    def _handle_gone(self, rank: int, *, is_own_fault: bool) -> None:
        """Not kept is what it had ended, and could not say any more.

        Unless it was its own fault it has died of none of them.
        """
        if rank not in self._slots:
            return
        slots = self._slots[rank]
        self._release(rank, slots.handle_gone())
        ended = [each.slot for each in slots.waiting() if not is_open(self._sockets[each])]
        self._release(rank, slots.handle_ended(ended))
        for held in () if is_own_fault else slots.waiting():
            if read_lives(self._memory[rank], held.slot) > held.lives:
                write_lives(self._memory[rank], held.slot, held.lives)

    def handle_given_up(self, rank: int) -> None:
        """No process will have the connections of this rank: clients see their end."""
        if rank in self._slots:
            self._release(rank, self._slots[rank].handle_given_up())

    def end_waiting(self, rank: int) -> None:
        """End connections of a rank that is given up, each in its own form."""
        if rank not in self._slots:
            return
        with map_slots(self._memory[rank]) as mappings:
            for held in self._slots[rank].waiting():
                end_unavailable(self._sockets[held], mappings, held.slot)
        self.handle_given_up(rank)

    async def pass_again(
        self, rank: int, child: Child, waiting: Iterable[HeldConnection], timeout_s: float
    ) -> None:
        """Task: give the connections that wait to the process that is READY, one after the other.

        One that takes nothing for `timeout_s` is asked again, until it ends: then they wait on.
        """
        for held in waiting:
            message = PassConnection(held.connection_id, held.slot, is_taken_over=True)
            held.lives = read_lives(self._memory[rank], held.slot)
            while held.phase is HeldPhase.WAITING and held in self._sockets:
                try:
                    await child.control.send(message, timeout_s, [self._sockets[held].fileno()])
                except trio.BrokenResourceError:
                    return
                except trio.TooSlowError:
                    continue
                self.handle_taken(rank, held, child.epoch)

    def _release(self, rank: int, ended: Iterable[HeldConnection]) -> None:
        for held in ended:
            self._sockets.pop(held).close()
            try:
                free_slot(self._memory[rank], held.slot)
            except OSError:
                continue  # never used again
            self._slots[rank].handle_cleared(held.slot)
