"""Frontend process: connections from the root, requests to the engines, answers between.

Composition only: the runtime's machines behind the application's routes. Connections come as
descriptors over the control socket, engines' addresses by membership.
"""

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial

import attrs
import msgspec
import trio

from ..engine.errors import EngineError
from ..engine.messages import Drain, TreeReply, TreeRequest
from ..nurseries.logs import open_log
from ..nurseries.processes.child import ChildFds, run_child
from ..nurseries.processes.heap import settle_heap
from ..nurseries.processes.progress_page import open_slot
from ..nurseries.tasks.background import waiting_for
from ..nurseries.tasks.service import open_service
from ..nurseries.tasks.task_tree import ProcessTree, task_tree
from ..runtime.config import JournalSettings
from ..runtime.frontend.adoption import AdoptedStream, adopt_streams
from ..runtime.frontend.frontend import Frontend
from ..runtime.journal.journal import Journal, open_journal
from ..runtime.journal.records import JournalUnreadable
from ..runtime.journal.writer import JournalLimits
from ..runtime.messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    ForeignCall,
    ForeignReply,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    FrontendStates,
    PassConnection,
    RootReply,
)
from ..runtime.runtime import make_frontend, open_frontend_hub, open_frontend_services
from ..runtime.text.input_processor import InputProcessor
from ..transports.codec import MalformedMessage
from ..transports.control.channel import ControlChannel
from ..transports.control.handshake import ChildHandshake, perform_child_handshake
from ..transports.control.passed_fds import close_fds
from ..transports.links.channel import Peer
from .application import Application
from .responses.foreign import ForeignResponses, RootCalls
from .serving.server import QueueSource, open_queue_source, serve_connections
from .settings import settings_of_text

logger = logging.getLogger(__name__)
# The root balances by these reports; between two of them it counts what it passed itself.
LOAD_PERIOD_S = 0.02


async def main(child: ChildFds) -> None:
    """Run one frontend until a stop is ordered. Whatever fails in it, fails it."""
    control = ControlChannel(child.control, sends=FRONTEND_TO_ROOT, receives=ROOT_TO_FRONTEND)
    handshake = await perform_child_handshake(control, "frontend")
    init = msgspec.msgpack.decode(handshake.init, type=FrontendInit)
    settings = settings_of_text(init.settings)
    await handshake.progress("load tokenizer", 0.0)
    try:
        inputs = InputProcessor.load(settings.runtime)
    except EngineError as error:  # a tokenizer or a template that a successor would meet as well
        await handshake.refuse(str(error))
    home = Peer("frontend", init.rank, init.term)
    name = f"frontend {home.rank}"
    page_fd = handshake.fds[0] if handshake.fds else None
    counters_fd = handshake.fds[-1] if len(handshake.fds) > 1 else None
    async with (
        open_log(settings.runtime.logs, process=name, epoch=init.epoch),
        open_frontend_hub(init.run_id, home) as channel,
    ):
        frontend = make_frontend(
            Frontend, settings.runtime, channel, inputs, term=home.epoch, rank=home.rank
        )
        # Its place alone: what its loop does in one pass may take long, so only a stop is a hang.
        with open_slot(page_fd, 0), ExitStack() as owned:
            close_fds(handshake.fds[:1])
            owned.callback(close_fds, handshake.fds[1:])
            journal = _enter_journal(
                owned, handshake.fds[1:-1], init.term, settings.runtime.journal
            )
            frontend.client.journal, frontend.client.is_rebuilding = journal, True
            frontend.client.apply_membership(init.engines)
            adopted = [] if journal is None else adopt_streams(frontend, journal)
            frontend.client.handle_rebuilt()
            application = Application(
                frontend,
                settings.serve,
                ForeignResponses(init.rank, settings.runtime.frontends, init.epoch, control.send),
                RootCalls(control.send),
                journal,
            )
            async with (
                application.totals.open_page(counters_fd, init.rank),
                open_frontend_services(channel, frontend.client),
                open_queue_source() as source,
            ):
                input_endpoint, output_endpoint = channel.endpoints
                where = FrontendReady(
                    input_endpoint=input_endpoint, output_endpoint=output_endpoint
                )
                process = FrontendProcess(init, control, frontend, application, source, adopted)
                await process.run(handshake, where)


def _enter_journal(
    owned: ExitStack, fds: Sequence[int], term: int, settings: JournalSettings
) -> Journal | None:
    """The journal in this memory, until the stack is left; None without.

    One that cannot be used is left alone: streams go on without.
    """
    if not fds:
        return None
    limits = JournalLimits(bytes_max=settings.bytes_max)
    try:
        return owned.enter_context(open_journal(fds[0], term, limits))
    except (JournalUnreadable, OSError) as error:
        logger.error("the journal of this frontend cannot be used: %s", error)
        return None


@attrs.define(eq=False)
class LoadReports:
    """Reports to the root how busy this frontend is: on change and never otherwise.

    `look` gives the counts of this moment, `send` takes a report to the root. A burst of changes is
    one report, so an idle frontend sleeps.
    """

    look: Callable[[], FrontendLoad]
    send: Callable[[FrontendLoad], Awaitable[None]]
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def changed(self) -> None:
        """A count may have changed. Cheap, and harmless when none has."""
        self._changed.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `load-reports`; never returns unless cancelled. Raises what `send` does.

        The first report is sent at once, then at most one in `LOAD_PERIOD_S`.
        """
        task_status.started()
        sent: FrontendLoad | None = None
        while True:
            self._changed = trio.Event()
            load = self.look()
            if load != sent:
                await self.send(load)
                sent = load
                await trio.sleep(LOAD_PERIOD_S)
            with waiting_for("changes of the load"):
                await self._changed.wait()

    async def watch(
        self,
        event: Callable[[], trio.Event],
        what: str,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task: report whenever `event`, which is replaced when it is set, was set."""
        task_status.started()
        while True:
            following = event()
            self.changed()  # of what came before this event: it was not waited for
            with waiting_for(f"changes of {what}"):
                await following.wait()


@attrs.define(eq=False)
class FrontendProcess:
    """What this process is made of."""

    init: FrontendInit
    control: ControlChannel
    frontend: Frontend
    application: Application
    source: QueueSource
    # Streams of the life before this one.
    adopted: list[AdoptedStream] = attrs.field(factory=list)
    _reports: LoadReports = attrs.field(init=False)
    # Connections that were passed to us and whose descriptor was lost on the way.
    _lost: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._reports = LoadReports(self.load, self.control.send)
        self.application.on_load = self.frontend.on_load = self._handle_change

    async def run(self, handshake: ChildHandshake, ready: FrontendReady) -> None:
        """Say READY, then serve connections until cancelled.

        Raises `ServiceEnded` if one of the tasks ends: a frontend without it would be silent or
        deaf, which is worse than dead.
        """
        serve = partial(serve_connections, self.source, self.application)
        engines_changed = partial(
            self._reports.watch, lambda: self.frontend.client.engines_changed, "the engines"
        )
        async with open_service(serve, name="connections"), trio.open_nursery() as nursery:
            keep_s = self.frontend.settings.journal.adopted_keep_s
            await self.application.adopt(self.adopted, keep_s)
            settle_heap()
            await handshake.ready(msgspec.msgpack.encode(ready))
            if self.init.draining:
                self._start_drain(nursery)
            async with (
                # Before the first report: an engine that came between the two would be missed.
                open_service(engines_changed, name="engines-changed"),
                open_service(self._reports.run, name="load-reports"),
                open_service(partial(self._run_control, nursery), name="control"),
            ):
                await trio.sleep_forever()

    def _handle_change(self) -> None:
        self._reports.changed()
        self.application.totals.changed()

    def load(self) -> FrontendLoad:
        """What the root balances by.

        A connection counts as received once it is open (or refused, or lost): between the two it
        would be neither under way nor open, and a drain that began then would not wait for it.
        """
        counters = self.application.counters
        return FrontendLoad(
            open_connections=counters.connections_active,
            open_streams=self.frontend.admission.active_requests,
            connections_received=counters.connections + counters.connections_refused + self._lost,
            engines_ready=len(self.frontend.client.balancer.engines),
        )

    async def _run_control(
        self,
        nursery: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task `control`: the root's orders and connections. It never waits for others.

        Raises `trio.EndOfChannel` when the root has left: then the death monitor ends us anyway.
        """
        task_status.started()
        while True:
            try:
                with waiting_for("orders"):
                    message, fds = await self.control.receive()
            except MalformedMessage as error:
                # Logged and counted by the channel; who waits for an answer has a deadline.
                if isinstance(error.known, PassConnection):
                    self._take_connection([])
                continue
            match message:
                case PassConnection():
                    self._take_connection(fds)
                case EngineMembership():
                    self.frontend.client.apply_membership(message)
                    self._handle_change()
                case FrontendStates(failed=failed):
                    self.application.failed_frontends = failed
                    self.application.foreign.handle_frontends(message)
                case Drain():
                    self._start_drain(nursery)
                case ForeignCall():
                    answer = self.application.foreign.answer
                    carry_out = self.application.carry_out
                    nursery.start_soon(answer, message, carry_out, name="foreign-call")
                case ForeignReply():
                    self.application.foreign.handle_reply(message)
                case RootReply():
                    self.application.root.handle_reply(message)
                case TreeRequest(call_id=call_id):
                    await self.control.send(TreeReply(call_id, self._tree_text()))
                case _:
                    raise AssertionError(f"the codec let {type(message).__name__} through")

    def _start_drain(self, nursery: trio.Nursery) -> None:
        self.frontend.drain()
        grace_s = self.frontend.settings.times.grace_s
        nursery.start_soon(self.application.drain, grace_s, name="drain")

    def _take_connection(self, fds: Sequence[int]) -> None:
        close_fds(fds[1:])
        if not fds:  # no room for its descriptor, here or at the root: its client sees the end
            self._lost += 1
            self._reports.changed()
            return
        connection = socket.socket(fileno=fds[0])
        if not self.source.put_nowait(connection):
            # The taker only starts tasks, so it is stuck or gone: a reset tells the client to
            # try again, and the root's orders are still heard.
            self.application.count_refused()
            connection.close()

    def _tree_text(self) -> str:
        tree = ProcessTree(
            f"frontend {self.init.rank}",
            os.getpid(),
            facts={
                "epoch": self.init.epoch,
                "engines": len(self.frontend.client.balancer.engines),
                "connections": self.application.counters.connections_active,
                "requests": self.frontend.admission.active_requests,
            },
            tasks=task_tree(),
        )
        return msgspec.json.encode(tree).decode()


if __name__ == "__main__":
    run_child(main)
