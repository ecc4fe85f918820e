"""Clients' connections in a simulation: how its root holds them, and how its frontends serve them.

Real are the API, the slots with their memory, and the root's books and duplicates; simulated is
TCP. A frontend may die at any store to a slot, and at any system call that changes a connection.
"""

import math
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain, repeat
from typing import Any

import attrs
import trio

from ....api.http.held import NO_SLOT, HeldSlots
from ....api.serving.server import PassedConnection, QueueSource
from ....engine.messages import AddRequest
from ....runtime.continuity.connection_slots import ConnectionSlots, HeldConnection
from ....runtime.continuity.held_connections import HeldConnections
from ....transports.takeover.memory import map_slots, refuse_slot
from ....transports.takeover.slot import ConnectionSlot
from ..kernel import SimProcess
from ..network import SimNetwork
from ..stores import Stores
from ..streams import Violation
from ..task_order import PROCESS
from .plan import FATAL_S, Death
from .tcp import SimSockets, SimTcp

# A ring of input that wraps.
INPUT_BYTES_SIMULATED = 2**16
# Cost limit of one fatal request: the process that it came to, and two that went on with it.
FATAL_DEATHS_MAX = 3


@attrs.define(eq=False)
class SimConnections:
    """Connections of all clients of one simulation."""

    count: int
    # Those of lives of the frontend, in turn; later ones are left alone.
    deaths: Iterable[Death]
    fail: Callable[[str], None]
    # Ends a process by a fault of its own.
    crash: Callable[..., None]
    sockets: SimSockets = attrs.field(factory=SimSockets, init=False)
    # {a request's seed: ids under which it was sent to an engine}
    executed: dict[int, set[str]] = attrs.field(factory=dict, init=False)
    _deaths: Iterator[Death] = attrs.field(init=False)
    # {pid: the death of a life, counted from when it is READY}
    _later: dict[int, Death] = attrs.field(factory=dict, init=False)
    _killed_by: Counter[str] = attrs.field(factory=Counter, init=False)

    def __attrs_post_init__(self) -> None:
        self._deaths = chain(self.deaths, repeat(Death(effects=math.inf)))

    def handle_boot(self, process: SimProcess, *, is_first: bool) -> None:
        """A life of the frontend begins: one that has never served would not be restarted."""
        death = next(self._deaths)
        if death.after_s or is_first:
            self._later[process.pid] = death
        else:
            self._plan(process, death)

    def handle_ready(self, process: SimProcess) -> None:
        """It takes connections."""
        if (death := self._later.pop(process.pid, None)) is not None:
            process.start_soon(self._plan_later, process, death)

    async def _plan_later(self, process: SimProcess, death: Death) -> None:
        await trio.sleep(death.after_s)
        self._plan(process, death)

    def _plan(self, process: SimProcess, death: Death) -> None:
        die = partial(self.crash, process, is_torn=death.is_torn)
        process.stores.plan_death(death.effects, die, is_torn=death.is_torn)

    def hold(self, network: SimNetwork) -> "SimHeld":
        """The root's side of them; what frontends ask engines for comes by this network."""
        network.on_asked = self.handle_sent
        return SimHeld(self.sockets.calls(), connections=self)

    def serve(
        self, process: SimProcess, fd: int, ended: list[int], owned: ExitStack
    ) -> Mapping[str, Any]:
        """The parts of an application that hold its connections in the slots of this memory."""
        process.on_cut.append(partial(self.sockets.handle_death, process.stores))
        slots = owned.enter_context(map_slots(fd))
        refuse = partial(refuse_slot, fd)
        held = HeldSlots(slots.view, ended.append, refuse, slot_type=WatchedSlot)
        return {"slots": held, "calls": self.sockets.calls()}

    def handle_sent(self, message: object) -> None:
        """A frontend sends this to an engine."""
        if isinstance(message, AddRequest) and message.sampling.seed is not None:
            self.executed.setdefault(message.sampling.seed, set()).add(message.request_id)

    async def die_of(self, process: SimProcess, tcp: SimTcp) -> None:
        """Task of a process that was passed a connection whose request is fatal."""
        await trio.sleep(FATAL_S)
        if tcp.is_reset or not process.is_alive:
            return  # this one did not read it
        self._killed_by[tcp.name] += 1
        if self._killed_by[tcp.name] > FATAL_DEATHS_MAX:
            self.fail(f"{tcp.name} has ended {self._killed_by[tcp.name]} frontends")
        self.crash(process)

    def check_executed(self, seeds_each: int) -> None:
        """Raises `Violation` if a request was admitted under two ids."""
        for seed, ids in self.executed.items():
            if len(ids) > 1:
                request = f"request {seed % seeds_each} of one client"
                raise Violation(f"{request} was executed {len(ids)} times")


@attrs.define(eq=False)
class SimHeld(HeldConnections):
    """In the place of `HeldConnections`: with as many slots as a plan says."""

    connections: SimConnections = attrs.field(kw_only=True)

    def handle_starting(self, rank: int, epoch: int) -> Mapping[str, int]:
        """See `HeldConnections`."""
        is_new = rank not in self._memory
        descriptors = super().handle_starting(rank, epoch)
        if is_new:
            self._slots[rank] = ConnectionSlots(self.connections.count)
        return descriptors

    def offer(self, rank: int, fd: int, connection_id: int) -> HeldConnection | None:
        """See `HeldConnections`."""
        held, tcp = super().offer(rank, fd, connection_id), self.connections.sockets.tcp_of(fd)
        tcp.is_held = held is not None
        if held is None and len(self._slots[rank]) < self.connections.count:
            self.connections.fail(f"{tcp.name} has no slot, and some are free")
        return held


class SimSource(QueueSource):
    """In the place of `QueueSource`: takes descriptors of simulated connections."""

    def __init__(self, process: SimProcess, connections: SimConnections) -> None:
        super().__init__()
        self._process, self._connections = process, connections

    def put_nowait(
        self,
        connection: socket.socket,
        slot: int = NO_SLOT,
        *,
        is_taken_over: bool = False,
        unheld: str = "",
    ) -> bool:
        """See `QueueSource`."""
        process = self._process
        sim: Any = self._connections.sockets.adopt(connection.detach(), process.stores)
        if not process.is_alive:
            sim.close()
            return True
        stream = trio.SocketStream(sim)
        self._put.send_nowait(PassedConnection(stream, slot, is_taken_over, unheld))
        if sim.tcp.is_fatal:
            process.start_soon(self._connections.die_of, process, sim.tcp)
        return True


@attrs.define(eq=False)
class WatchedSlot(ConnectionSlot):
    """A slot whose stores are those of the process that makes them, with a ring that wraps."""

    input_bytes: int = attrs.field(default=INPUT_BYTES_SIMULATED, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        process = PROCESS.get()
        assert isinstance(process, SimProcess)
        self.memory, self._words = _watched(process.stores, self.memory, self._words)


def _watched(stores: Stores, *memories: memoryview) -> Any:
    return [stores.watch(memory) for memory in memories]
