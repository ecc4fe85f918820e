"""What simulated processes run: the engine's and the frontend's own code, over simulated parts.

An engine is `EngineProcess` with a spoke of the simulated network and simulated workers; a frontend
is `FrontendProcess`, whose requests come from simulated clients in place of connections.
"""

import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import attrs
import msgspec
import trio

from ...api import frontend_process
from ...api.application import Application
from ...api.frontend_home import FrontendHome
from ...api.root_calls import RootCalls
from ...api.serving.server import QueueSource
from ...api.settings import ServeSettings
from ...api.streams.foreign import ForeignStreams
from ...engine.batch_table import open_batch_table
from ...engine.block_names import open_block_names
from ...engine.config import EngineSettings
from ...engine.control_messages import ENGINE_TO_ROOT, ROOT_TO_ENGINE, EngineInit
from ...engine.core.engine_core import EngineCore
from ...engine.process import main as engine_process
from ...engine.process.server import EngineServer
from ...engine.step_messages import WorkerReady
from ...engine.step_recorder import NO_RECORDER
from ...nurseries.processes.forked_call import ForkedCallDied
from ...nurseries.processes.process import LadderTimes
from ...nurseries.processes.progress_page import SLOT_BYTES, private_slot
from ...nurseries.processes.spares import Readiness, Spares
from ...nurseries.tasks.changes import Changes
from ...runtime.config import RuntimeSettings
from ...runtime.forms import form_process
from ...runtime.forms.form_client import FormClient
from ...runtime.frontend.adoption import AdoptedStream, adopt_streams
from ...runtime.frontend.core_client import CoreClient
from ...runtime.frontend.frontend import Frontend
from ...runtime.journal.journal import open_journal
from ...runtime.journal.writer import JournalLimits
from ...runtime.messages import (
    FORMS_TO_ROOT,
    FRONTEND_TO_ROOT,
    ROOT_TO_FORMS,
    ROOT_TO_FRONTEND,
    FormsInit,
    FrontendInit,
    FrontendReady,
)
from ...runtime.runtime import make_frontend, open_frontend_services
from ...runtime.text.input_processor import InputProcessor
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import ChildHandshake, Hello, perform_child_handshake
from ...transports.links.channel import Peer
from .kernel import Main, SimProcess
from .network import SimNetwork
from .plan import Form
from .responses import SURFACE, Forgotten, SimResponses
from .stores import divide_journal, open_watched_journal, watch_names
from .takeover.connections import SimConnections, SimSource
from .worker import SimExecutor, run_no_compiler

ENGINE, FRONTEND, FORMS = "simulated engine", "simulated frontend", "simulated forms"
# Of a check.
CHECK_S = (0.0, 0.002, 0.02, 0.3)
# Ids of responses that one life may draw: as none else may have them, a seed has one trace.
IDS_MAX = 500
# Of reports of counts, of which nothing is judged but that they come: seldom, as each costs as much
# as a step of an engine.
STATISTICS_PERIOD_S = 0.4
LOAD_PERIOD_S = 0.1


@attrs.define(eq=False)
class _Channel:
    """A control channel whose HELLO says the simulated pid."""

    control: ControlChannel
    pid: int

    async def send(self, message: object, fds: Sequence[int] = ()) -> None:
        if isinstance(message, Hello):
            message = Hello(message.role, self.pid)
        await self.control.send(message, fds)

    async def receive_any(self) -> tuple[object, list[int]]:
        return await self.control.receive_any()


@attrs.define(eq=False)
class EngineParts:
    """Of one engine process."""

    process: engine_process.EngineProcess
    executor: SimExecutor | None = None

    @property
    def core(self) -> EngineCore | None:
        """None while it boots."""
        server: EngineServer | None = getattr(self.process, "_server", None)
        return None if server is None else server.core

    def knows_later(self, frontend: Peer) -> bool:
        """Whether the root has listed a later life of this frontend."""
        return any(
            each.rank == frontend.rank and each.epoch > frontend.epoch
            for each in self.process._known
        )


@attrs.define(eq=False)
class FrontendParts:
    """Of one frontend process."""

    frontend: Frontend
    responses: SimResponses
    # Set when it serves.
    forms: FormClient | None = None
    application: Application | None = None

    @property
    def client(self) -> CoreClient:
        """Its side of the engines."""
        return self.frontend.client


@attrs.define(eq=False)
class SimCalls:
    """In the place of `ForkedCalls`: checks of forms that say how they end (`plan.Form`)."""

    chance: Random
    waiting_pid = None
    # Set to kill the copy: of each check under way.
    copies: list[trio.Event] = attrs.field(factory=list, init=False)

    @asynccontextmanager
    async def open_call(self, argument: bytes) -> AsyncIterator[bytes]:
        """See `ForkedCalls.open_call`."""
        text, killed = argument.decode(), trio.Event()
        self.copies.append(killed)
        try:
            with trio.move_on_after(self.chance.choice(CHECK_S)):
                await killed.wait()
        finally:
            self.copies.remove(killed)
        if killed.is_set():
            raise ForkedCallDied("was killed by SIGKILL", is_own_fault=False)
        if Form.CRASHES in text:
            raise ForkedCallDied("was killed by SIGSEGV", is_own_fault=True)
        yield b"it is refused" if Form.REFUSED in text else b"\0"

    def prepare(self) -> None:
        """A copy costs nothing here."""

    async def aclose(self) -> None:
        """None waits."""


@attrs.define(eq=False)
class FormParts:
    """Of one form process; `ends` are duplicates of its links."""

    calls: SimCalls
    ends: list[socket.socket]

    def cut(self) -> None:
        """It is dead: what it still says nobody hears."""
        for end in self.ends:
            with suppress(OSError), end:  # its frontend was first
                end.shutdown(socket.SHUT_RDWR)


@attrs.define(eq=False)
class _FormControl:
    """A control channel that keeps a duplicate of each link."""

    control: ControlChannel
    parts: FormParts

    async def send(self, message: object, fds: Sequence[int] = ()) -> None:
        await self.control.send(message, fds)

    async def receive(self) -> tuple[object, list[int]]:
        message, fds = await self.control.receive()
        self.parts.ends += [socket.socket(fileno=os.dup(fd)) for fd in fds]
        return message, fds


@attrs.define(eq=False)
class Programs:
    """The main functions of one simulation."""

    network: SimNetwork
    settings: RuntimeSettings
    inputs: InputProcessor
    chance: Random
    # What the workers of each engine rank say.
    worker_ready: Callable[[int], WorkerReady]
    family: Callable[[int], int]
    # See `SimExecutor`.
    fatal: dict[int, int]
    on_fatal: Callable[[SimExecutor, int], None]
    prepare: Callable[[Frontend], None]
    limits: JournalLimits
    # A frontend begins to boot; it has adopted these; it takes clients.
    on_boot: Callable[[SimProcess], None]
    on_adopted: Callable[[SimProcess, list[AdoptedStream]], None]
    on_up: Callable[[SimProcess], None]
    # See `WatchedJournal`.
    on_rebuilding: Callable[[SimProcess, int], None]
    forgotten: Forgotten
    # Connections of clients, if there are some.
    connections: SimConnections | None
    # {rank: the latest}, whose memory outlives it.
    _executors: dict[int, SimExecutor] = attrs.field(factory=dict, init=False)

    def mains(self) -> dict[str, Main]:
        """By the modules that the fleets are given."""
        return {ENGINE: self.run_engine, FRONTEND: self.run_frontend, FORMS: self.run_forms}

    async def run_engine(self, process: SimProcess) -> None:
        """As `engine.process.main.main`."""
        control = ControlChannel(process.control, sends=ENGINE_TO_ROOT, receives=ROOT_TO_ENGINE)
        handshake = await self._handshake(process, control, "engine")
        init = msgspec.msgpack.decode(handshake.init, type=EngineInit)
        me = _become(process, "engine", init.rank, init.epoch)
        process.on_cut.append(partial(self.network.remove, me))

        def keep(executor: SimExecutor) -> None:
            self._executors[init.rank] = executor
            assert isinstance(process.parts, EngineParts)
            process.parts.executor = executor

        make_executor = partial(
            SimExecutor,
            process=process,
            ready=self.worker_ready(init.rank),
            family=self.family(init.rank),
            fatal=self.fatal,
            on_fatal=self.on_fatal,
            chance=self.chance,
            before=self._executors.get(init.rank),
            on_made=keep,
        )
        after_slots = SLOT_BYTES * (1 + init.settings.workers)
        with open_batch_table(handshake.fds[0], after_slots, init.settings.max_num_seqs) as batches:
            process.stores.add(batches)
            engine = engine_process.EngineProcess(
                init,
                control,
                handshake,
                self.network.open_spoke(me),  # type: ignore[arg-type]  # of another carrier
                NO_RECORDER,
                private_slot(),
                batches,
                make_executor=make_executor,  # type: ignore[arg-type]
                make_spares=_no_spare_workers,
                run_compiler=run_no_compiler,
                open_names=partial(open_block_names, make=partial(watch_names, process.stores)),
                settle=_settle_nothing,
                statistics_period_s=STATISTICS_PERIOD_S,
            )
            process.parts = EngineParts(engine)
            await engine.run()

    async def run_frontend(self, process: SimProcess) -> None:
        """As `api.frontend_process.main`."""
        control = ControlChannel(process.control, sends=FRONTEND_TO_ROOT, receives=ROOT_TO_FRONTEND)
        handshake = await self._handshake(process, control, "frontend")
        init = msgspec.msgpack.decode(handshake.init, type=FrontendInit)
        _become(process, "frontend", init.rank, init.epoch)
        self.on_boot(process)
        fds = dict(zip(init.descriptors, handshake.fds, strict=True))
        async with self._open_home(process, init, fds, control) as home:
            running = frontend_process.FrontendProcess(
                init, control, home, settle=_settle_nothing, load_period_s=LOAD_PERIOD_S
            )
            assert isinstance(process.parts, FrontendParts)
            process.parts.forms = running.forms
            await running.run(handshake, home.where)

    async def run_forms(self, process: SimProcess) -> None:
        """As `runtime.forms.form_process.main`."""
        control = ControlChannel(process.control, sends=FORMS_TO_ROOT, receives=ROOT_TO_FORMS)
        handshake = await self._handshake(process, control, "forms")
        init = msgspec.msgpack.decode(handshake.init, type=FormsInit)
        _become(process, "forms", init.rank, init.epoch)
        process.parts = parts = FormParts(SimCalls(self.chance), process.links)
        process.on_cut.append(parts.cut)
        await handshake.ready(b"")
        linked: Any = _FormControl(control, parts)
        await form_process.FormProcess(init, linked, parts.calls).run()

    @asynccontextmanager
    async def _open_home(
        self,
        process: SimProcess,
        init: FrontendInit,
        fds: Mapping[str, int],
        control: ControlChannel,
    ) -> AsyncIterator[FrontendHome]:
        """Open a home as `open_frontend_home` does; without connections it has `SimResponses`."""
        settings, me = self.settings, Peer("frontend", init.rank, init.epoch)
        hub = self.network.open_hub(me)
        process.on_cut.append(partial(self.network.remove, me, hub.endpoints[0]))
        changes = Changes()
        numbers: Any = {"term": me.epoch, "rank": me.rank, "chance": self.chance}
        frontend = make_frontend(
            *(Frontend, settings, hub, self.inputs), **numbers, on_load=changes.notify
        )
        self.prepare(frontend)
        divide_journal(fds["journal"], me.rank)
        opening = partial(
            open_watched_journal, process.stores, partial(self.on_rebuilding, process)
        )
        with (
            open_journal(fds["journal"], me.epoch, self.limits, opening) as journal,
            ExitStack() as owned,
        ):
            frontend.client.journal, frontend.client.is_rebuilding = journal, True
            responses = SimResponses(process, me.rank, journal, self.forgotten)
            process.parts = FrontendParts(frontend, responses)
            frontend.client.apply_membership(init.engines)
            adopted = adopt_streams(frontend, journal)
            frontend.client.handle_rebuilt()
            own = [stream for stream in adopted if stream.surface == SURFACE]
            responses.adopt(own)
            if process.is_alive:
                self.on_adopted(process, own)
            foreign = ForeignStreams(me.rank, settings.frontends, init.epoch, control.send)
            served: Mapping[str, Any] = {}
            source, ended = QueueSource(), list[int]()
            if self.connections is not None:
                served = self.connections.serve(process, fds["connections"], ended, owned)
                served = {"journal": journal, **served}
                source = SimSource(process, self.connections)
            owned.callback(source.abandon)
            served = {"changes": changes, **served}
            application = Application(
                frontend, ServeSettings(), foreign, RootCalls(control.send), **served
            )
            application.ids._prefix = f"{process.pid}"
            application.ids._digits[:] = [f"{process.pid:016x}{n:016x}" for n in range(IDS_MAX)]
            process.parts.application = application
            async with open_frontend_services(hub, frontend.client):
                responses.start()
                self.on_up(process)
                others = [stream for stream in adopted if stream.surface != SURFACE]
                has_slots = application.slots is not None
                inputs, outputs = hub.endpoints
                where = FrontendReady(
                    input_endpoint=inputs, output_endpoint=outputs, has_slots=has_slots
                )
                yield FrontendHome(frontend, application, source, others, ended, where)

    async def _handshake(
        self, process: SimProcess, control: ControlChannel, role: str
    ) -> ChildHandshake:
        handshake = await perform_child_handshake(_Channel(control, process.pid), role)
        process.fds += handshake.fds
        # A slot as of one whose loop always waits: only a stop is a hang, and no step is late.
        slot = (process.pid, 0, 0, 0, 0, 0, 1, 0)
        os.pwrite(handshake.fds[0], struct.pack("=8Q", *slot), 0)
        return handshake


def _become(process: SimProcess, role: str, rank: int, epoch: int) -> Peer:
    process.role, process.rank, process.epoch = role, rank, epoch
    return Peer(role, rank, epoch)


def _settle_nothing() -> None:
    """The heap is that of all processes."""


def _no_spare_workers(settings: EngineSettings) -> Spares:
    """Workers are their executor's own here, and no processes."""
    ladder, readiness = LadderTimes(), Readiness()
    return Spares("worker", "", 0, settings.boot_timeout_s, ladder, readiness)
