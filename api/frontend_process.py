"""Frontend process: connections from the root, requests to the engines, answers between.

Composition only: the runtime's machines behind the application's routes. Connections come as
descriptors over the control socket, engines' addresses by membership.
"""

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache, partial

import attrs
import msgspec
import trio

from ..engine.control_messages import Drain, TreeReply, TreeRequest
from ..engine.errors import EngineError, refusal_of
from ..nurseries.logs import open_log
from ..nurseries.processes.child import ChildFds, run_child
from ..nurseries.processes.heap import return_large_blocks, settle_heap
from ..nurseries.processes.process_exit import EXIT_HANDED_OVER
from ..nurseries.processes.progress_page import open_slot, passes_shown
from ..nurseries.processes.title import set_title
from ..nurseries.processes.watched import Watch, WatchedProcess
from ..nurseries.tasks.background import start_background_task_soon, waiting_for
from ..nurseries.tasks.changes import Changes
from ..nurseries.tasks.service import open_service
from ..nurseries.tasks.task_tree import ProcessTree, task_tree
from ..runtime.forms.form_client import FormClient
from ..runtime.frontend.watched_frontend import WatchedFrontend
from ..runtime.hands import Hands, open_table
from ..runtime.messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    ForeignCall,
    ForeignReply,
    FormLink,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    FrontendStates,
    HandOver,
    HostReports,
    PassConnection,
    RootReply,
    ServerNews,
)
from ..runtime.text.input_processor import InputProcessor
from ..transports.codec import MalformedMessage
from ..transports.control.channel import ControlChannel
from ..transports.control.handshake import ChildHandshake, perform_child_handshake
from ..transports.control.passed_fds import close_fds
from .frontend_home import FrontendHome, open_frontend_home
from .root_calls import RootCalls
from .serving.server import serve_connections
from .settings import settings_of_text
from .streams.foreign import ForeignStreams
from .throughput import ThroughputLog
from .viewers import Viewers

# The root balances by these reports; between two of them it counts what it passed itself.
LOAD_PERIOD_S = 0.02


async def main(child: ChildFds, *, make_hands: Callable[..., Hands] = Hands) -> None:
    """Run one frontend until a stop is ordered. Whatever fails in it, fails it."""
    return_large_blocks()
    control = ControlChannel(child.control, sends=FRONTEND_TO_ROOT, receives=ROOT_TO_FRONTEND)
    set_title("frontend, waiting")
    handshake = await perform_child_handshake(control, "frontend")
    init = msgspec.msgpack.decode(handshake.init, type=FrontendInit)
    set_title(f"frontend {init.rank}")
    settings = settings_of_text(init.settings)
    await handshake.progress("load tokenizer", 0.0)
    try:
        inputs = load_inputs(init.settings)
    except EngineError as error:  # a tokenizer or a template that a successor would meet as well
        await handshake.refuse(*refusal_of(error))
    forms = FormClient()
    fds = dict(zip(init.descriptors, handshake.fds, strict=False))
    name = f"frontend {init.rank}"
    async with open_log(settings.runtime.logs, process=name, epoch=init.epoch):
        with (
            open_slot(fds.get("progress"), 0) as progress,
            passes_shown(progress),
            open_table(fds.get("progress")) as table,
            ExitStack() as owned,
        ):
            changes = Changes()
            hands = make_hands(table, changes.notify)
            hands.handle_doubted(init.doubted)
            inputs = attrs.evolve(inputs, forms=forms, hands=hands)  # forked with what is shared
            owned.callback(close_fds, handshake.fds)
            count, send = settings.runtime.frontends, control.send
            opening = open_frontend_home(
                *(init, settings, inputs, fds),
                foreign=ForeignStreams(init.rank, count, init.epoch, send),
                root=RootCalls(send),
                viewers=Viewers(send),
                changes=changes,
            )
            async with opening as home:
                await FrontendProcess(init, control, home, forms).run(handshake, home.where)


@attrs.define(eq=False)
class LoadReports:
    """Reports to the root how busy this frontend is: on change and never otherwise.

    `look` takes the counts of this moment, `send` takes a report to the root, `changes` are of
    anything. A burst of them is one report, so an idle frontend sleeps.
    """

    look: Callable[[], FrontendLoad]
    send: Callable[[FrontendLoad], Awaitable[None]]
    changes: Changes
    period_s: float = LOAD_PERIOD_S

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `load-reports`; never returns unless cancelled. Raises what `send` does.

        The first report is sent at once, then at most one in `period_s`.
        """
        task_status.started()
        sent: FrontendLoad | None = None
        while True:
            change, load = self.changes.next, self.look()
            if load.ended or load.passed or load != sent:
                await self.send(load)
                sent = load
                await trio.sleep(self.period_s)
            with waiting_for("changes of the load"):
                await change.wait()

    async def watch(
        self,
        changes: Changes,
        what: str,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task: report whenever there are `changes`, and at once."""
        task_status.started()
        while True:
            self.changes.notify()
            with waiting_for(f"changes of {what}"):
                await changes.wait()


@attrs.define(eq=False)
class FrontendProcess:
    """Home of one frontend, orders from the root, and reports to it."""

    init: FrontendInit
    control: ControlChannel
    home: FrontendHome
    forms: FormClient = attrs.field(factory=FormClient)
    settle: Callable[[], None] = settle_heap
    load_period_s: float = LOAD_PERIOD_S
    _reports: LoadReports = attrs.field(init=False)
    _watched: WatchedProcess = attrs.field(init=False)
    # Connections that were passed to us and whose descriptor was lost on the way.
    _lost: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._reports = LoadReports(
            self.load, self.control.send, self.home.application.changes, self.load_period_s
        )
        self._watched = WatchedProcess(
            WatchedFrontend(self._name, self.home.frontend.client.ledger, self._facts),
            self.control.send,
        )

    async def run(self, handshake: ChildHandshake, ready: FrontendReady) -> None:
        """Say READY, then serve connections until cancelled.

        Raises `ServiceEnded` if one of the tasks ends: a frontend without it would be silent or
        deaf, which is worse than dead.
        """
        home = self.home
        serve = partial(serve_connections, home.source, home.application)
        client = home.frontend.client
        engines_changed = partial(self._reports.watch, client.engines_changed, "the engines")
        throughput = ThroughputLog(
            home.frontend,
            home.application.settings.throughput_log_s,
            home.application.totals.is_first,
        )
        home.source.pause()
        async with open_service(serve, name="connections"), trio.open_nursery() as nursery:
            # Now engines link, and the RESYNCs go out: they must not wait for the API's part of it.
            await handshake.ready(msgspec.msgpack.encode(ready))
            if self.init.draining:
                self._start_drain(nursery)
            async with (
                # Before the first report: an engine that came between the two would be missed.
                open_service(engines_changed, name="engines-changed"),
                open_service(self._reports.run, name="load-reports"),
                open_service(self._watched.run, name="watched"),
                open_service(home.application.viewers.run, name="viewers"),
                open_service(throughput.run, name="throughput-log"),
                open_service(self.forms.run, name="form-checks"),
                open_service(partial(self._run_control, nursery), name="control"),
            ):
                await home.adopt()
                self.settle()
                home.source.resume()
                await trio.sleep_forever()

    def load(self) -> FrontendLoad:
        """Load by which the root balances.

        A connection counts as received once it is open (or refused, or lost): between the two it
        would be neither under way nor open, and a drain that began then would not wait for it.
        """
        home = self.home
        counters = home.application.counters
        ended, home.ended[:] = home.ended[:], []
        hands = home.application.hands
        passed, hands.passed[:] = hands.passed[:], []
        return FrontendLoad(
            open_connections=counters.connections_active,
            open_streams=home.frontend.admission.active_requests,
            connections_received=counters.connections + counters.connections_refused + self._lost,
            engines_ready=len(home.frontend.client.balancer.engines),
            ended=ended,
            passed=passed,
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
                    self._take_connection(error.known, [])
                continue
            match message:
                case PassConnection():
                    self._take_connection(message, fds)
                case FormLink() if fds:
                    self.forms.handle_link(socket.socket(fileno=fds[0]))
                case FormLink():
                    pass  # its descriptor was lost on the way: the other end sees that
                case EngineMembership():
                    self.home.frontend.client.apply_membership(message)
                    self.home.application.changes.notify()
                case FrontendStates(failed=failed):
                    self.home.application.failed_frontends = failed
                    self.home.application.metrics.frontend_restarts = message.restarts
                    self.home.application.foreign.handle_frontends(message)
                    self.home.application.hands.handle_doubted(message.doubted)
                case HostReports(hosts=hosts):
                    self.home.application.metrics.hosts = hosts
                case HandOver() if self.home.application.slots is not None:
                    start_background_task_soon(nursery, self._hand_over, name="hand-over")
                case Drain() | HandOver():
                    self._start_drain(nursery, hands_over=isinstance(message, HandOver))
                case ForeignCall():
                    answer = self.home.application.foreign.answer
                    carry_out = self.home.carry_out
                    start_background_task_soon(
                        nursery, answer, message, carry_out, name="foreign-call"
                    )
                case ForeignReply():
                    self.home.application.foreign.handle_reply(message)
                case RootReply():
                    self.home.application.root.handle_reply(message)
                case Watch():
                    self._watched.handle_watch(message)
                case ServerNews():
                    self.home.application.viewers.handle_news(message)
                case TreeRequest(call_id=call_id):
                    await self.control.send(TreeReply(call_id, self._tree_text()))
                case _:
                    raise AssertionError(f"the codec let {type(message).__name__} through")

    def _start_drain(self, nursery: trio.Nursery, *, hands_over: bool = False) -> None:
        self.home.frontend.drain()
        drain = partial(self.home.drain, hands_over=hands_over)
        start_background_task_soon(nursery, drain, name="drain")

    async def _hand_over(self) -> None:
        """Task: end at a moment when the next life can go on with every connection.

        As if killed: nothing is unwound, so no client hears of it. After the grace the root does
        it.
        """
        await self.home.application.wait_held()
        os._exit(EXIT_HANDED_OVER)

    def _take_connection(self, passed: PassConnection, fds: Sequence[int]) -> None:
        close_fds(fds[1:])
        application = self.home.application
        if not fds:  # no room for its descriptor, here or at the root: its client sees the end
            self._lost += 1
            application.handle_closed(passed.slot)
            application.changes.notify()
            return
        connection = socket.socket(fileno=fds[0])
        if not self.home.source.put_nowait(
            connection, passed.slot, is_taken_over=passed.is_taken_over, unheld=passed.unheld
        ):
            # The taker only starts tasks, so it is stuck or gone: a reset tells the client to
            # try again, and the root's orders are still heard.
            connection.close()
            application.handle_closed(passed.slot)
            application.count_refused()

    def _tree_text(self) -> str:
        facts: dict[str, str | int] = {"epoch": self.init.epoch, **self._facts()}
        tree = ProcessTree(self._name, os.getpid(), facts=facts, tasks=task_tree())
        return msgspec.json.encode(tree).decode()

    @property
    def _name(self) -> str:
        return f"frontend {self.init.rank}"

    def _facts(self) -> dict[str, int]:
        return {
            "engines": len(self.home.frontend.client.balancer.engines),
            "connections": self.home.application.counters.connections_active,
            "requests": self.home.frontend.admission.active_requests,
        }


@lru_cache(maxsize=1)
def load_inputs(settings_text: str) -> InputProcessor:
    """Tokenizer and template of these settings. Raises `EngineError`."""
    return InputProcessor.load(settings_of_text(settings_text).runtime)


def prepare(settings_text: bytes) -> None:
    """Load them before there is a frontend: 128 000 tokens take half a second."""
    with suppress(EngineError):  # as each frontend will say
        load_inputs(settings_text.decode())


if __name__ == "__main__":
    run_child(main, prepare=prepare)
