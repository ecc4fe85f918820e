"""Root process of a server: owns the listening socket and every process, and knows no HTTP.

It accepts connections and passes each to a frontend, restarts what dies, publishes who is
there, and answers commands over the run folder's control socket. Never loads torch, a tokenizer or
an HTTP parser, so that next to nothing in it can fail.
"""

import itertools
import os
import pathlib
import random
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import asynccontextmanager
from functools import partial

import attrs
import msgspec
import trio

from ...engine.control_messages import FrontendMembership
from ...nurseries.processes.kernel import KERNEL, Kernel
from ...nurseries.processes.watched import Watched
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.service import single_errors_unwrapped, start_service
from ...nurseries.tasks.task_tree import ProcessTree, task_tree
from ..config import RuntimeSettings
from ..continuity.held_connections import HeldConnections
from ..continuity.journal_folder import open_journal_folder
from ..control.calls import (
    ControlCall,
    ControlQuestion,
    EngineState,
    Role,
    ServerPlaces,
    SignalOrder,
)
from ..control.run_folder import RunFolder, make_run_folder
from ..errors import ControlCallRefused, PortInUse
from ..events import Draining, HostsAwaited, OnEvent, RunEvent, Serving
from ..messages import WatchServer
from .control_server import serve_control
from .elsewhere import HeadParts, MakeElsewhere, PlacesElsewhere
from .engine_fleet import ENGINE_MODULE, EngineFleet
from .fleet_orders import FleetOrders
from .fleet_parts import FleetParts
from .form_fleet import FORM_MODULE, FormFleet, FormLinks, link_frontend
from .frontend_fleet import FrontendEstates, FrontendFleet
from .membership import FrontendDirectory
from .platform import check_platform
from .server_rows import ServerRows, root_row
from .server_watch import FrontendViews, ServerWatch

# By name, not by import: this floor does not know what a frontend speaks.
FRONTEND_MODULE = "triolet.api.frontend_process"
# Connections that the kernel keeps while no frontend takes them.
BACKLOG = 1024
# Out of descriptors: what is in flight must end before another connection fits.
ACCEPT_PAUSE_S = 0.05


@attrs.frozen(kw_only=True)
class ServePlan:
    """Plan of a server. `frontend_settings` is JSON text for the frontends.

    The modules are what the children run. `demo_key` is an admin key for who started it.
    """

    settings: RuntimeSettings
    frontend_settings: str
    version: str
    host: str = "127.0.0.1"
    port: int = 8000
    demo_key: str = attrs.field(default="", repr=False)
    engine_module: str = ENGINE_MODULE
    frontend_module: str = FRONTEND_MODULE
    forms_module: str = FORM_MODULE


def bind_listener(host: str, port: int) -> socket.socket:
    """A listening TCP socket, before anything is spawned. Raises `PortInUse`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortInUse(host, port, error.strerror or str(error)) from error
    return listener


@attrs.define(eq=False)
class Root:
    """Root of a server. `run` is cancelled to stop it; `drain` serves out first."""

    plan: ServePlan
    on_event: OnEvent
    run_id: str = attrs.field(factory=lambda: secrets.token_hex(8))
    kernel: Kernel = KERNEL
    # The fleet that this module has when a root is made: programs of tests have one of their own.
    make_engines: Callable[..., EngineFleet] = attrs.field(factory=lambda: EngineFleet)
    # Spreads the delays of restarts.
    chance: random.Random = attrs.field(factory=random.Random)
    held: HeldConnections = attrs.field(factory=HeldConnections)
    # Makes what has to do with other machines; None: no other may join.
    make_elsewhere: MakeElsewhere | None = None
    elsewhere: PlacesElsewhere | None = attrs.field(default=None, init=False)
    engines: EngineFleet = attrs.field(init=False)
    frontends: FrontendFleet = attrs.field(init=False)
    forms: FormFleet = attrs.field(init=False)
    watch: ServerWatch = attrs.field(init=False)
    orders: FleetOrders = attrs.field(init=False)
    _views: FrontendViews = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        parts = FleetParts(
            plan.settings,
            self._handle_event,
            run_id=self.run_id,
            epochs=self._epochs(),
            kernel=self.kernel,
            chance=self.chance,
        )
        directory = FrontendDirectory()
        self.engines = self.make_engines(
            parts=parts,
            frontends=directory,
            on_membership=lambda membership: self.frontends.processes.publish(membership),
            on_watched=lambda text: self.watch.handle_said(text),
            on_explained=self._excuse_elsewhere,
            module=plan.engine_module,
        )
        self.forms = FormFleet(
            count=plan.settings.frontends,
            parts=parts,
            on_link=lambda rank, end: link_frontend(self.frontends.processes, rank, end),
            on_watched=lambda text: self.watch.handle_said(text),
            module=plan.forms_module,
        )
        self.frontends = FrontendFleet(
            module=plan.frontend_module,
            parts=parts,
            settings_text=plan.frontend_settings,
            engines=self.engines.directory.snapshot,
            on_membership=self._publish_frontends,
            answer=self._answer,
            directory=directory,
            on_watch=self._handle_watch,
            estates=FrontendEstates(self.held, [FormLinks(self.forms)]),
        )
        self.orders = FleetOrders(
            {
                self.frontends.processes: self.frontends.restart,
                self.engines.processes: self.engines.restart,
                self.forms.processes: self.forms.restart,
            }
        )
        self.watch = self._make_watch()
        self._views = FrontendViews(self.watch, self.frontends.processes)
        if self.make_elsewhere is not None:
            publish = self.frontends.processes.publish
            head = HeadParts(
                engines=self.engines,
                frontends=directory,
                on_membership=publish,
                on_event=self._handle_event,
                on_said=self.watch.handle_said,
                on_reports=publish,
            )
            self.elsewhere = self.make_elsewhere(head)

    def _make_watch(self) -> ServerWatch:
        plan = self.plan
        return ServerWatch(
            {"run": self.run_id, "model": plan.settings.model_name, "version": plan.version},
            ServerRows(
                self.orders.fleets,
                lambda: root_row(self.frontends.connections.balancer.open_streams()),
                elsewhere=lambda: () if self.elsewhere is None else self.elsewhere.rows(),
            ),
            on_order=self._watch_elsewhere,
        )

    def _excuse_elsewhere(self, epochs: Set[int]) -> None:
        if self.elsewhere is not None:
            self.elsewhere.excuse(epochs)

    def _watch_elsewhere(self, number: int) -> None:
        if self.elsewhere is not None:
            self.elsewhere.watch(number)

    def _publish_frontends(self, membership: FrontendMembership) -> None:
        self.engines.processes.publish(membership)
        if self.elsewhere is not None:
            self.elsewhere.publish(membership)

    def _handle_event(self, event: RunEvent) -> None:
        self.watch.handle_event(event)
        self.on_event(event)

    def _handle_watch(self, rank: int, message: Watched | WatchServer) -> None:
        if isinstance(message, Watched):
            self.watch.handle_said(message.text)
        else:
            self._views.handle_order(rank, message)

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started, with the URL, when a request can be answered.

        Raises `PortInUse`, `UnsupportedPlatform`, `BootRefused`, `NoEngineLeft`,
        `NoFrontendLeft`, each bare unless there are several; `ServiceEnded` of a task of its
        own that was cancelled alone.
        Resource handling: every process, socket and the run folder are gone afterwards.
        """
        check_platform()
        began_s = trio.current_time()
        with bind_listener(self.plan.host, self.plan.port) as listener:
            url = _url(listener)
            folder = make_run_folder(
                self.run_id, url=url, model=self.plan.settings.model_name, version=self.plan.version
            )
            with folder as run_folder, single_errors_unwrapped():
                async with self._open_journals(), trio.open_nursery() as nursery:
                    await self._start(nursery, run_folder, listener)
                    self.on_event(Serving(url, trio.current_time() - began_s))
                    task_status.started(url)

    def _epochs(self) -> Iterator[int]:
        """Numbers of this run's processes; with journals on disk of all runs'."""
        journals = self.frontends.estates.journals.folder
        yield from itertools.count(1) if journals is None else journals.numbers()

    @asynccontextmanager
    async def _open_journals(self) -> AsyncIterator[None]:
        """Around all processes: the folder of their journals, if there is one, is ours."""
        settings = self.plan.settings
        if not settings.journal.folder:
            yield
            return
        path = pathlib.Path(settings.journal.folder)
        opening = open_journal_folder(path, model=settings.model_name, frontends=settings.frontends)
        async with opening as self.frontends.estates.journals.folder:
            yield

    async def _start(
        self, nursery: trio.Nursery, folder: RunFolder, listener: socket.socket
    ) -> None:
        control = partial(serve_control, folder, self._answer, self.watch.view)
        await start_service(nursery, control, name="control-server", waits_for="questions")
        await start_service(nursery, self.watch.run, name="watch")
        if self.elsewhere is not None:  # first: its port is bound before anything is spawned
            await start_service(nursery, self.elsewhere.run, name="hosts")
            if not self.plan.settings.engines:
                self.on_event(HostsAwaited(self.plan.settings.hosts.join_address))
        await start_service(nursery, self.engines.processes.run, name="engines")
        journals = self.frontends.estates.journals.folder
        if journals is not None and journals.is_used:
            # Unfinished streams wait only so long for an engine, and for their clients.
            with waiting_for("an engine"):
                await self.engines.ready_once.wait()
        await start_service(nursery, self.frontends.processes.run, name="frontends")
        with waiting_for("a frontend with an engine"):
            await self.frontends.connections.wait_serving()
        await start_service(nursery, self._accept, listener, name="accept")
        await start_service(
            nursery, self.forms.processes.run, name="forms"
        )  # last: no start waits for it
        for fleet in (self.engines, self.frontends):
            fleet.processes.start_spares()

    async def _accept(
        self,
        listener: socket.socket,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task `accept`: one connection after another to the frontends."""
        listener.setblocking(False)
        task_status.started()
        while True:
            with waiting_for("connections"):
                await trio.lowlevel.wait_readable(listener)
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                continue  # the client left between the wake-up and here
            except OSError:
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            with connection:
                await self.frontends.connections.pass_connection(connection)

    async def drain(self) -> None:
        """Accept nothing new, serve out what is open, at most for the grace time."""
        grace_s = self.plan.settings.times.grace_s
        self.on_event(Draining(self.frontends.connections.balancer.open_streams(), grace_s))
        await self.frontends.connections.drain()
        with trio.move_on_after(grace_s), waiting_for("open streams to end"):
            await self.frontends.connections.wait_drained()

    def any_failed(self) -> bool:
        """Whether an engine or frontend is given up; the exit code says so."""
        return bool(self.engines.processes.failed or self.frontends.processes.failed)

    def to_reap(self) -> set[int]:
        """The processes that were spawned here and are not reaped yet, by number."""
        own = self.orders.to_reap()
        return own if self.elsewhere is None else own | self.elsewhere.to_reap()

    async def _answer(self, question: ControlQuestion) -> str:
        found: object
        named = question.named
        if self.elsewhere is not None and self.elsewhere.has(named):
            return await self.elsewhere.answer(named, question)
        match question:
            case ControlQuestion(ControlCall.DRAIN):
                raise ControlCallRefused(f"there is no {named} here", "no_host")
            case ControlQuestion(ControlCall.RELOAD):
                if self.elsewhere is None:
                    raise ControlCallRefused("no host may join this server", "no_host")
                found = self.elsewhere.reload()
            case ControlQuestion(ControlCall.RESTART, place):
                found = {"restarted": self.orders.restart(place)}
            case ControlQuestion(ControlCall.PLACES):
                found = self._places()
            case ControlQuestion(ControlCall.SIGNAL, order=SignalOrder() as order):
                found = self.orders.signal(order)
            case ControlQuestion(ControlCall.TREE):
                found = await self._tree()
            case _:
                raise ControlCallRefused(f"a {question.call} is not asked so", "bad_question")
        return msgspec.json.encode(found).decode()

    def _places(self) -> ServerPlaces:
        settings = self.plan.settings
        fleets = self.engines.processes, self.frontends.processes
        places = [fleet.place(rank) for fleet in fleets for rank in fleet.places]
        if self.elsewhere is not None:
            places += self.elsewhere.places()
        engines_ready = sum(
            each.place.role is Role.ENGINE and each.state is EngineState.READY for each in places
        )
        return ServerPlaces(
            places,
            is_linked=self.frontends.connections.balancer.is_linked(engines_ready),
            restart_s=sum(attrs.astuple(settings.times.ladder))
            + settings.times.grace_s
            + settings.engine.boot_timeout_s,
        )

    async def _tree(self) -> ProcessTree:
        return ProcessTree(
            "root",
            os.getpid(),
            facts={
                "run": self.run_id,
                "model": self.plan.settings.model_name,
                "open streams": self.frontends.connections.balancer.open_streams(),
                **self.orders.failed(),
            },
            tasks=task_tree(),
            processes=[
                *await self.orders.trees(),
                *([] if self.elsewhere is None else await self.elsewhere.trees()),
            ],
        )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
