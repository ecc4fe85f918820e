"""Brings the faults of a simulation: each at its time, to the process or the way that it names."""

import math
import signal
from collections.abc import Callable
from functools import partial

import attrs
import trio

from .kernel import SimProcess
from .plan import AT_STORE, CRASHES, OF_FORMS, OF_HOSTS, OF_WORKER, PROGRESS_S, Fault, FaultKind
from .processes import EngineParts, FormParts, FrontendParts
from .scene import Scene
from .worker import SimExecutor

# A fault that waits for a step of an idle process comes anyway.
IDLE_S = 0.3
# Silence of an engine is noticed within so long, and once its frontend has come to it.
SILENT_S = 1.5
# One that finds no process waits for the next so long.
WAIT_S = 5.0


@attrs.define(eq=False)
class Injector:
    """All faults of one simulation."""

    scene: Scene

    @property
    def _ends_of_frontends(self) -> dict[FaultKind, Callable[[Fault, SimProcess], None]]:
        return {
            FaultKind.KILL_FRONTEND: lambda fault, process: self.scene.kernel.kill(process),
            FaultKind.CRASH_FRONTEND: self._crash,
            FaultKind.KILL_FRONTEND_AT_STORE: self._end_at_store,
            FaultKind.KILL_ADOPTER: self._ambush,
            FaultKind.KILL_BOTH: self._kill_with,
        }

    async def run_fault(self, fault: Fault) -> None:
        await trio.sleep(fault.at_s)
        if fault.tokens > self.scene.tokens:
            self.scene.progress.append((fault.tokens, has_come := trio.Event()))
            with trio.move_on_after(PROGRESS_S):
                await has_come.wait()
        way = (fault.frontend, fault.engine)
        match fault.kind:
            case FaultKind.KILL_ENGINE:
                await self._hit("engine", fault.engine, fault, self.scene.kernel.kill)
            case kind if kind in self._ends_of_frontends:
                end = partial(self._ends_of_frontends[kind], fault)
                await self._hit("frontend", fault.frontend, fault, end)
            case FaultKind.KILL_AT_STORE | FaultKind.CRASH_AT_STORE:
                end = partial(self._end_at_store, fault)
                await self._hit("engine", fault.engine, fault, end)
            case FaultKind.CRASH_ENGINE:
                crash = partial(self.scene.kernel.kill, number=signal.SIGSEGV)
                await self._hit("engine", fault.engine, fault, crash)
            case FaultKind.KILL_SPARE:
                spares = [p for p in self.scene.kernel.processes if p.is_alive and not p.role]
                if spares:
                    self._count(fault)
                    self.scene.kernel.kill(spares[fault.count % len(spares)])
            case FaultKind.STOP_ENGINE | FaultKind.STOP_FRONTEND:
                is_engine = fault.kind is FaultKind.STOP_ENGINE
                role, rank = ("engine", way[1]) if is_engine else ("frontend", way[0])
                process = await self._hit(role, rank, fault, self.scene.kernel.stop)
                if process is not None:
                    await trio.sleep(fault.for_s)
                    self.scene.kernel.resume(process)
            case kind if kind in OF_FORMS:
                await self._hit_forms(fault)
            case kind if kind in OF_HOSTS:
                await self._hit_host(fault)
            case kind if kind in OF_WORKER:
                await self._hit("engine", fault.engine, fault, partial(_fail_worker, kind))
            case FaultKind.CUT:
                self._count(fault)
                await self._cut(way, fault.for_s)
            case FaultKind.SLOW:
                self._count(fault)
                self.scene.network.slow.add(way)
                await trio.sleep(fault.for_s)
                self.scene.network.slow.discard(way)
            case FaultKind.DROP | FaultKind.DOUBLE:
                self._count(fault)
                network = self.scene.network
                ways = network.drops if fault.kind is FaultKind.DROP else network.doubles
                ways[way] += fault.count
            case FaultKind.BREAK:
                await self._break_link(fault)
            case FaultKind.NO_SPAWN:
                self._count(fault)
                self.scene.kernel.refusals += fault.count
                await trio.sleep(fault.for_s)
            case FaultKind.DRAIN:
                await self._drain(fault)
            case FaultKind.ADD_ENGINE | FaultKind.REMOVE_ENGINE:
                self._resize(fault)

    async def _cut(self, way: tuple[int, int], for_s: float) -> None:
        self.scene.network.cut(way)
        await trio.sleep(for_s)
        self._check_nothing_stalls(way)
        self.scene.network.cuts.pop(way, None)

    def _check_nothing_stalls(self, way: tuple[int, int]) -> None:
        """Streams of an engine on another machine that is cut off go on where they can."""
        process, now = self.scene.present("frontend", way[0]), trio.current_time()
        cut_s = now - self.scene.network.cuts.get(way, now)
        if not self.scene.setup.is_apart or cut_s < SILENT_S:
            return
        if process is None or process.was_stopped or not isinstance(process.parts, FrontendParts):
            return
        client = process.parts.client
        for peer in client.ledger.placed.peers():
            stalled = client.ledger.placed.of(peer).values()
            if peer.rank == way[1] and client.engines.is_met(peer) and not client.is_rebuilding:
                for decision in client.ledger.replays.decide(now, stalled):
                    if decision.entry.peer == peer:
                        self.scene.fail(f"a stream stalls at {peer}, which says nothing")

    async def _hit_forms(self, fault: Fault) -> None:
        kernel = self.scene.kernel
        act = {FaultKind.KILL_FORMS: kernel.kill, FaultKind.STOP_FORMS: kernel.stop}
        process = await self._hit("forms", fault.frontend, fault, act.get(fault.kind, _kill_checks))
        if process is not None and fault.kind is FaultKind.STOP_FORMS:
            await trio.sleep(fault.for_s)
            kernel.resume(process)

    async def _hit_host(self, fault: Fault) -> None:
        if (hosts := self.scene.hosts) is not None:
            self._count(fault)
            await hosts.run_fault(fault, range(self.scene.setup.frontends))

    def _resize(self, fault: Fault) -> None:
        """Have one engine more or fewer; the last one stays."""
        engines = self.scene.root.engines
        self._count(fault)
        if fault.kind is FaultKind.ADD_ENGINE:
            engines.add()
        elif engines.can_remove(fault.engine):
            engines.remove(fault.engine)

    async def _drain(self, fault: Fault) -> None:
        """Restart an engine in order: it serves out what it has, and takes nothing new."""
        process = await self._hit("engine", fault.engine, fault, _start_drain)
        if process is not None:
            await trio.sleep(fault.for_s)
            if process.is_alive:
                self.scene.root.engines.restart(fault.engine)

    async def _break_link(self, fault: Fault) -> None:
        """End a link generation; what is under way in it comes late."""
        self._count(fault)
        frontend, engine = self.scene.present("frontend", fault.frontend), fault.engine
        if frontend is not None and isinstance(frontend.parts, FrontendParts):
            self.scene.network.slow.add((fault.frontend, engine))
            await trio.sleep(0.05)
            client = frontend.parts.client
            for peer in client.balancer.engines:
                if peer.rank == engine and frontend.is_alive:
                    client.channel.break_link(peer, "simulated")
            await trio.sleep(0.05)
            self.scene.network.slow.discard((fault.frontend, engine))

    def _count(self, fault: Fault) -> None:
        self.scene.trace.note(f"fault {fault}")
        self.scene.reached[str(fault.kind)] += 1
        self.scene.reached["crash"] += fault.kind in CRASHES

    async def _hit(
        self, role: str, rank: int, fault: Fault, act: Callable[[SimProcess], None]
    ) -> SimProcess | None:
        """Do `act` to a process of this rank, after some steps of it; None if there is none."""
        with trio.move_on_after(WAIT_S):
            while True:
                process = self.scene.present(role, rank)
                if process is None:
                    await trio.sleep(0.01)
                elif await self._hit_one(process, fault, act):
                    return process
        return None

    async def _hit_one(
        self, process: SimProcess, fault: Fault, act: Callable[[SimProcess], None]
    ) -> bool:
        """False if it died before."""
        done = trio.Event()

        def due() -> None:
            process.due_at = math.inf
            if process.is_alive and not done.is_set():
                self._count(fault)
                act(process)
                done.set()

        if fault.kind in AT_STORE:
            process.stores.plan_death(fault.steps, due, is_torn=fault.is_torn)
        else:
            process.due_at, process.due = process.steps + fault.steps, due
        with trio.move_on_after(IDLE_S):
            await done.wait()
        due()
        return done.is_set()

    def _end_at_store(self, fault: Fault, process: SimProcess) -> None:
        if process.stores.is_fatal:  # not one that has stored nothing for `IDLE_S`
            self.scene.reached["crash between two stores"] += not fault.is_torn
            self.scene.reached["crash within a store"] += fault.is_torn
        is_crash = fault.kind is FaultKind.CRASH_AT_STORE
        self.scene.kernel.kill(process, signal.SIGSEGV if is_crash else signal.SIGKILL)

    def _crash(self, fault: Fault, process: SimProcess) -> None:
        self.scene.kernel.kill(process, signal.SIGSEGV)

    def _ambush(self, fault: Fault, process: SimProcess) -> None:
        self.scene.ambushes[process.rank] = fault
        self.scene.kernel.kill(process)

    def _kill_with(self, fault: Fault, process: SimProcess) -> None:
        engine = self.scene.present("engine", fault.engine)
        for each in (process, engine):
            if each is not None:
                self.scene.kernel.kill(each)

    def heal(self) -> None:
        """No fault is left: what was stopped goes on, all ways are open."""
        self.scene.network.cuts.clear()
        self.scene.network.slow.clear()
        self.scene.network.drops.clear()
        self.scene.network.doubles.clear()
        self.scene.kernel.refusals = 0
        if self.scene.hosts is not None:
            self.scene.hosts.heal()
        for process in self.scene.kernel.processes:
            self.scene.kernel.resume(process)


def _fail_worker(kind: FaultKind, process: SimProcess) -> None:
    parts = process.parts
    assert isinstance(parts, EngineParts)
    if isinstance(parts.executor, SimExecutor):
        parts.executor.fail(kind.value.partition(" ")[2])


def _kill_checks(process: SimProcess) -> None:
    if isinstance(process.parts, FormParts):
        for copy in process.parts.calls.copies:
            copy.set()


def _start_drain(process: SimProcess) -> None:
    parts = process.parts
    assert isinstance(parts, EngineParts)
    if parts.core is not None:
        parts.core.start_drain()
