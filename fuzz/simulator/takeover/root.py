"""The root of simulated lives of one frontend: its duplicates and slots, and one life at a time.

Of the root only what connections need of it is here, by the real `HeldConnections`; it never dies.
"""

import contextlib
import mmap
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import attrs
import trio

from ....api.application import Application
from ....api.http.held import NO_SLOT, HeldSlots
from ....api.serving.server import PassedConnection, serve_connections
from ....engine.process.inproc import InprocExecutor
from ....engine.step_messages import Step, StepResult, WorkerReady
from ....nurseries.tasks.changes import Changes
from ....runtime.continuity.connection_slots import ConnectionSlots
from ....runtime.continuity.held_connections import HeldConnections
from ....runtime.frontend.adoption import adopt_streams
from ....runtime.journal.journal import Journal
from ....runtime.journal.reader import read_journal
from ....runtime.journal.writer import JournalWriter
from ....runtime.launch.child import Gone
from ....runtime.launch.child_end import ChildEnd, EndKind
from ....runtime.messages import PassConnection
from ....runtime.runtime import Runtime
from ....transports.takeover.memory import SLOT_BYTES, SlotCalls
from ....transports.takeover.slot import ConnectionSlot
from ...doubles.bed import Bed
from ...doubles.journal_memory import NotedMemory
from ..streams import Violation
from .life import LIFE, LifeJournal, SimLife, WatchedSlot
from .plan import FATAL_S, SLOTS_MANY, Death
from .tcp import SimKernel, SimSocket, SimTcp

PASS_S = 1.0
KEEP_S = 30.0
STEP_S = 0.001
JOURNAL_BYTES = 2**20
# What one fatal request may cost: the process that it came to, and two that went on with it.
FATAL_DEATHS_MAX = 3


@attrs.define(eq=False)
class SimRoot:
    """Of one frontend: its lives, one after the other, and what outlives them. Never dies."""

    bed: Bed
    deaths: Sequence[Death]
    note: Any
    kernel: SimKernel
    count: int = SLOTS_MANY
    held: HeldConnections = attrs.field(init=False)
    journal: bytearray = attrs.field(
        factory=lambda: NotedMemory.fresh(JOURNAL_BYTES).data, init=False
    )
    slots: mmap.mmap = attrs.field(
        factory=lambda: mmap.mmap(-1, SLOTS_MANY * SLOT_BYTES, mmap.MAP_PRIVATE), init=False
    )
    lives: list["ServingLife"] = attrs.field(factory=list, init=False)
    present: "ServingLife | None" = attrs.field(default=None, init=False)
    is_dead: bool = False
    _came: Changes = attrs.field(factory=Changes, init=False)
    _connections: int = 0
    _fatal_deaths: int = 0

    def __attrs_post_init__(self) -> None:
        memory = SlotCalls(lambda rank: rank, self._free_slot, self._read_lives, self._write_lives)
        self.held = HeldConnections(self.kernel.calls(), memory)

    def make(self, what: str, effect: Any) -> None:
        """See `tcp.Process`."""
        effect()

    async def run(self) -> None:
        """Task: one life after the other; the last is left alone."""
        self.held.handle_starting(0, 1)
        self.held._slots[0] = ConnectionSlots(self.count)
        for number, death in enumerate(chain(self.deaths, repeat(Death(effects=2**40))), 1):
            life = SimLife(number, self.kernel, self.note, death.effects, death.is_torn)
            serving = ServingLife(self, life)
            self.lives.append(serving)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serving.run)
                nursery.start_soon(serving.arm, death.after_s)
                nursery.start_soon(self._pass_again, serving)
                nursery.start_soon(self._end_by_request, serving)
                await life.died.wait()
                self.present = None
                nursery.cancel_scope.cancel("it is dead")
            # It crashed: kills from outside count toward nothing.
            self.held.handle(0, Gone(ChildEnd(EndKind.FAULT, "crashed")))

    async def _pass_again(self, serving: "ServingLife") -> None:
        await serving.ready.wait()
        if serving.life.is_dead:
            return
        waiting = self.held.handle_ready(0, serving.epoch)
        self.present = serving
        self._came.notify()
        child: Any = serving
        await self.held.pass_again(0, child, waiting, PASS_S)

    async def _end_by_request(self, serving: "ServingLife") -> None:
        tcp = await serving.wait_fatal()
        await trio.sleep(FATAL_S)
        if tcp.is_reset:
            return  # this one did not read it
        self._fatal_deaths += 1
        if self._fatal_deaths > FATAL_DEATHS_MAX:
            raise Violation(f"{tcp.name} has ended {self._fatal_deaths} frontends")
        self.note(f"{serving.epoch} dies of {tcp.name}")
        serving.life.die()

    async def connect(self, connection: SimTcp) -> None:
        """As `ConnectionDispatcher.pass_connection`: to who is there, or comes."""
        fd = self.kernel.open(connection, self)
        while self.present is None:
            await self._came.wait()
        serving = self.present
        self._connections += 1
        offered = self.held.offer(0, fd, self._connections)
        connection.is_held = offered is not None
        if offered is None and len(self.held._slots[0]) < self.count:
            raise Violation(f"{connection.name} has no slot, and some are free")
        slot = NO_SLOT if offered is None else offered.slot
        with contextlib.suppress(trio.BrokenResourceError):
            await serving.send(PassConnection(self._connections, slot), PASS_S, [fd])
        if offered is not None:
            self.held.handle_taken(0, offered, serving.epoch)
        self.kernel.close(fd)

    def view(self, number: int) -> memoryview:
        """See `SlotMappings`."""
        return memoryview(self.slots)[number * SLOT_BYTES : (number + 1) * SLOT_BYTES]

    def _free_slot(self, _: int, number: int) -> None:
        self.slots.madvise(mmap.MADV_DONTNEED, number * SLOT_BYTES, SLOT_BYTES)

    def _read_lives(self, _: int, number: int) -> int:
        return ConnectionSlot(self.view(number)).lives

    def _write_lives(self, _: int, number: int, count: int) -> None:
        ConnectionSlot(self.view(number)).lives = count

    def left(self) -> str:
        """What is held for no client; "" for nothing."""
        return "connections" if self.held.ranks() else ""


@attrs.define(eq=False)
class ServingLife:
    """The frontend in one life: adopts what is in the journal, and serves what it is passed."""

    root: SimRoot
    life: SimLife
    ready: trio.Event = attrs.field(factory=trio.Event, init=False)
    application: Application | None = attrs.field(default=None, init=False)
    _put: Any = attrs.field(init=False)
    _taken: Any = attrs.field(init=False)
    # The connection whose request it dies of, when it has that.
    _fatal: SimTcp | None = attrs.field(default=None, init=False)
    _fatal_came: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._put, self._taken = trio.open_memory_channel[PassedConnection](SLOTS_MANY)

    @property
    def epoch(self) -> int:
        """Of the process."""
        return self.life.number

    async def arm(self, after_s: float) -> None:
        """Count its effects from now, or when it has served for so long."""
        if after_s:
            await self.ready.wait()
            await trio.sleep(after_s)
        self.life.is_armed = True

    async def run(self) -> None:
        """Until it is killed."""
        LIFE.set(self.life)
        with self.life.scope:
            if self.life.number == 1:
                await self._serve(self.root.bed.frontend)
            else:
                async with self.root.bed.open_successor(self.life.number) as frontend:
                    await self._serve(frontend)
        assert self.life.is_dead

    async def _serve(self, frontend: Runtime) -> None:
        self.life.cut_off = lambda: self.root.bed.cut_off(frontend)
        memory = LifeJournal(self.root.journal, self.life)
        contents = read_journal(memory)
        writer = JournalWriter.resume(memory, contents, self.life.number)
        journal = frontend.client.journal = Journal.resume(writer, contents)
        streams = []
        if self.life.number > 1:
            streams = adopt_streams(frontend, journal)
            frontend.client.handle_rebuilt()
        self.application = Application(
            frontend,
            journal=journal,
            slots=HeldSlots(self.root.view, self._handle_ended, slot_type=WatchedSlot),
            calls=self.root.held.calls,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_connections, self, self.application)
            await self.application.adopt(streams, KEEP_S)
            self.ready.set()
            await trio.sleep_forever()

    def _handle_ended(self, number: int) -> None:
        self.life.make(f"ended {number}", lambda: self.root.held.handle_ended(0, [number]))

    @property
    def control(self) -> "ServingLife":
        """What takes orders."""
        return self

    async def send(self, passed: PassConnection, timeout_s: float, fds: Sequence[int]) -> None:
        """As `ChildControl.send`. Raises `BrokenResourceError` if it is dead."""
        await trio.lowlevel.checkpoint()
        if self.life.is_dead:
            raise trio.BrokenResourceError
        fd = self.root.kernel.pass_on(fds[0], self.life)
        socket: Any = SimSocket(self.root.kernel, fd)
        stream = trio.SocketStream(socket)
        self._put.send_nowait(PassedConnection(stream, passed.slot, passed.is_taken_over))
        tcp, _ = self.root.kernel.find(fd)
        if tcp.is_fatal:
            self._fatal = tcp
            self._fatal_came.set()

    async def wait_fatal(self) -> SimTcp:
        """The connection that it will die of, when it was passed that."""
        await self._fatal_came.wait()
        assert self._fatal is not None
        return self._fatal

    async def accept(self) -> PassedConnection:
        """See `ConnectionSource`."""
        passed: PassedConnection = await self._taken.receive()
        return passed


@attrs.define(eq=False)
class LoopExecutor(InprocExecutor):
    """Computes each step in the loop, in virtual time, and not in a thread."""

    async def load(self) -> WorkerReady:
        """See `InprocExecutor`."""
        await trio.lowlevel.checkpoint()
        return self.worker.load(lambda *_: None)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `InprocExecutor`."""
        task_status.started()
        await trio.sleep_forever()

    def submit(self, step: Step) -> None:
        """See `InprocExecutor`; no step waits for a mask here."""
        self._put_answer(step.number, self._answer(step))

    async def result(self, number: int) -> StepResult:
        """See `InprocExecutor`."""
        await trio.sleep(STEP_S)
        return await super().result(number)
