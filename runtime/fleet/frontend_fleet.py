"""Frontend processes of one server: supervised, fed with connections and memberships.

A frontend that has served is never given up: its streams and connections wait for its next life.
Their module is given by name, since this floor imports nothing of HTTP.
"""

import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import msgspec
import trio

from ...engine.control_messages import Drain, FrontendAddress, FrontendMembership
from ...nurseries.processes.hang_watch import BLOCKED_S
from ...nurseries.processes.watched import Watched
from ...nurseries.tasks.background import waiting_for
from ..config import RuntimeSettings
from ..continuity.estate import Estate, FrontendCounters
from ..continuity.frontend_journals import FrontendJournals
from ..continuity.held_connections import HeldConnections
from ..errors import ControlCallRefused, NoFrontendLeft
from ..events import ChildFailed
from ..hands import TABLE_BYTES
from ..launch.child import (
    BecameFailing,
    BecameReady,
    Child,
    ChildKind,
    GivenUp,
    Gone,
    PlaceEvent,
    Said,
    Suspected,
)
from ..launch.child_control import SEND_TIMEOUT_S
from ..launch.child_end import ChildEnd, EndKind
from ..messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    ForeignCall,
    ForeignReply,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    FrontendStates,
    HandOver,
    RootCall,
    RootReply,
    WatchServer,
)
from .connection_dispatcher import ConnectionDispatcher
from .control_server import Answer
from .doubted_contents import DoubtedContents
from .fleet_parts import FleetParts
from .membership import FrontendDirectory, deliver
from .process_supervisor import ProcessSupervisor

# Calls that wait for a control socket, each with a response; out of the air.
RELAYS_MAX = 256


@attrs.define(eq=False)
class RelayedCalls:
    """Calls of the frontends that are `processes`; `answer` is the root's to an operator."""

    processes: ProcessSupervisor
    answer: Answer
    _waiting: int = attrs.field(default=0, init=False)

    def handle(self, rank: int, message: ForeignCall | ForeignReply | RootCall) -> None:
        """Frontend `rank` calls another, answers one, or asks the root.

        Sent in a task of its own; above a bound not at all.
        """
        ready = self.processes.ready
        if isinstance(message, RootCall):
            receiver: int | None = rank
        else:
            receiver = deliver(message, {each: child.epoch for each, child in ready.items()})
        if receiver is not None and self._waiting < RELAYS_MAX:
            self._waiting += 1
            self.processes.start_task(self._send, ready[receiver], message, name="relayed-call")

    async def _send(self, child: Child, message: ForeignCall | ForeignReply | RootCall) -> None:
        """Send one message; of an operator's question it is the answer that is sent."""
        try:
            sent = await self._reply_to(message) if isinstance(message, RootCall) else message
            await child.control.send_if_possible(sent, SEND_TIMEOUT_S)
        finally:
            self._waiting -= 1

    async def _reply_to(self, call: RootCall) -> RootReply:
        try:
            return RootReply(call.call_id, await self.answer(call.question))
        except ControlCallRefused as refused:
            return RootReply(call.call_id, "", refused.reason, refused.code)


@attrs.define(eq=False)
class FrontendEstates:
    """Estates of the frontends of one run, and the `others`, which are theirs only in part."""

    held: HeldConnections = attrs.field(factory=HeldConnections)
    others: Sequence[Estate] = ()
    journals: FrontendJournals = attrs.field(factory=FrontendJournals, init=False)

    def opened(self, settings: RuntimeSettings) -> tuple[Estate, ...]:
        """Estates that there are with these settings, in the order in which events reach them."""
        journals = () if settings.journal.disabled else (self.journals,)
        slots = (self.held,) if settings.takes_over else ()
        return (*journals, *slots, FrontendCounters(), *self.others)


@attrs.define(eq=False)
class FrontendFleet:
    """The frontends of one run: processes of `module`, which the `estates` outlive.

    `settings_text` is for them alone; `engines` gives the newest snapshot, for INIT.
    """

    module: str  # by name, since this floor imports nothing of HTTP
    parts: FleetParts
    settings_text: str
    engines: Callable[[], EngineMembership]
    on_membership: Callable[[FrontendMembership], None]
    answer: Answer  # what the root says to a question of an operator
    directory: FrontendDirectory = attrs.field(factory=FrontendDirectory)
    # Gets what a frontend says of itself while it is watched, or its wish to watch others.
    on_watch: Callable[[int, Watched | WatchServer], None] = lambda rank, message: None
    estates: FrontendEstates = attrs.field(factory=FrontendEstates)
    doubted: DoubtedContents = attrs.field(init=False)
    processes: ProcessSupervisor = attrs.field(init=False)
    connections: ConnectionDispatcher = attrs.field(init=False)
    calls: RelayedCalls = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.doubted = DoubtedContents(self.parts.on_event)
        self.processes = ProcessSupervisor(
            owner=self,
            kind=ChildKind(
                role="frontend",
                module=self.module,
                sends=ROOT_TO_FRONTEND,
                receives=FRONTEND_TO_ROOT,
                blocked_s=BLOCKED_S,
                table_bytes=TABLE_BYTES,
            ),
            count=self.settings.frontends,
            parts=self.parts,
            estates=self.estates.opened(self.settings),
            spares_count=self.settings.spare_frontends,
            preparation=self.settings_text.encode(),
            gives_up_served=False,  # a client may make it die
        )
        self.connections = ConnectionDispatcher(self.processes, self.estates.held)
        self.calls = RelayedCalls(self.processes, self.answer)

    @property
    def settings(self) -> RuntimeSettings:
        """The settings of the run."""
        return self.parts.settings

    def _handle_given_up(self, rank: int, end: ChildEnd) -> None:
        """Declare a frontend failed; the others serve on, if there are.

        Where its process hangs in the kernel, its home and its streams wait for the end of that.
        """
        any_left = self.processes.any_left()
        if end.kind is EndKind.REFUSED and not (any_left or self.processes.have_served):
            raise end.failure
        why = self.processes.failed[rank]
        self.parts.on_event(ChildFailed(f"frontend {rank}", why))
        if not any_left:
            raise NoFrontendLeft(str(end.failure)) from end.failure
        if self.processes.is_stuck(rank):
            end_stuck = partial(self._end_stuck, rank, why)
            self.processes.start_task(end_stuck, name=f"stuck-frontend-{rank}")
        self.connections.notify()
        self._publish_states()

    async def _end_stuck(self, rank: int, reason: str) -> None:
        """Task: end the connections of a frontend that hangs in the kernel for too long.

        They wait as long as a request waits for an engine.
        """
        with trio.move_on_after(self.settings.replay.replay_wait_s):
            while self.processes.failed.get(rank) is reason:
                await self.connections.changed.wait()
        if self.processes.failed.get(rank) is reason:
            self.connections.end_waiting(rank)

    def restart(self, rank: int) -> None:
        """Begin a frontend anew; one that serves may serve out first, but not at a second order.

        One whose process hangs in the kernel, and may still write, begins with an empty home.
        """
        if self.processes.is_stuck(rank):
            self.connections.end_waiting(rank)
            self.estates.journals.lose(rank)
            self.on_membership(self.directory.handle_failed(rank))
        child = self.processes.ready.get(rank)
        if child is not None and self.connections.balancer.handle_leaving(rank):
            self.processes.start_task(self._serve_out, rank, child, name=f"restart-frontend-{rank}")
        else:
            self._begin_anew(rank)

    async def _serve_out(self, rank: int, child: Child) -> None:
        """Restart a frontend when its connections have ended, at the latest after the grace."""
        with trio.move_on_after(self.settings.times.grace_s):
            order = HandOver() if not self.settings.journal.disabled else Drain()
            await child.control.send_if_possible(order, self.connections.pass_timeout_s)
            with waiting_for(f"the connections of frontend {rank} to end"):
                await self.connections.wait_idle(rank)
        if self.processes.ready.get(rank) is child:
            self._begin_anew(rank)

    def _begin_anew(self, rank: int) -> None:
        """Restart a frontend now; with a journal it is killed, so that its next life goes on."""
        child = self.processes.ready.get(rank)
        is_idle = self.connections.balancer.is_idle_at(rank)
        if child is not None and (self.settings.journal.disabled or is_idle):
            self.connections.held.handle_stopping(rank)  # in order, it ends them
        elif child is not None:
            child.signal(signal.SIGKILL)
        self.processes.restart(rank)

    # ---- as the owner of its places

    def handle_starting(self, rank: int, epoch: int, descriptors: Sequence[str]) -> bytes:
        """A new epoch of a frontend, listed when it is READY."""
        self._publish_states()
        init = FrontendInit(
            run_id=self.parts.run_id,
            rank=rank,
            epoch=epoch,
            settings=self.settings_text,
            engines=self.engines(),
            draining=self.connections.is_draining,
            descriptors=["progress", *descriptors],
            died_ns=self.directory.died_ns(rank),
            doubted=self.doubted.snapshot(),
        )
        return msgspec.msgpack.encode(init)

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """A frontend takes connections, says something, or is going.

        Raises `NoFrontendLeft` when the last is given up; `BootRefused` instead if none was ever
        ready and the last said why none can be.
        """
        match event:
            case BecameReady(child, payload):
                self._handle_ready(rank, child, msgspec.msgpack.decode(payload, type=FrontendReady))
            case Said(message):
                self._handle_message(rank, message)
            case Suspected(table):  # a content that was in hand, whichever
                epoch = self.processes.places[rank].epoch
                if self.doubted.handle_fault(rank, epoch, table):
                    self.processes.excuse({epoch})
            case BecameFailing():
                self.connections.handle_failing(rank)
            case Gone():  # its requests are kept for a while
                self.connections.handle_failing(rank)
                self.on_membership(self.directory.handle_gone(rank, time.monotonic_ns()))
                self._publish_states()
                self.connections.notify()
            case GivenUp(end):
                self._handle_given_up(rank, end)

    def _handle_ready(self, rank: int, child: Child, where: FrontendReady) -> None:
        self.connections.handle_ready(rank, child, has_slots=where.has_slots)
        child.control.publish(self.engines())  # some may have come or gone since its INIT
        self._publish_states()
        address = FrontendAddress(
            rank,
            child.epoch,
            where.input_endpoint,
            where.output_endpoint,
            *where.remote_endpoints,
            where.server_key,
        )
        self.on_membership(self.directory.handle_ready(address))
        self.connections.notify()

    def _handle_message(self, rank: int, message: object) -> None:
        match message:
            case FrontendLoad():
                self.connections.handle_load(rank, message)
                if self.doubted.handle_passed(message.passed):
                    self._publish_states()
            case ForeignCall() | ForeignReply() | RootCall():
                self.calls.handle(rank, message)
            case Watched() | WatchServer():
                self.on_watch(rank, message)
            case _:
                raise AssertionError(f"the codec let {type(message).__name__} through")

    def states(self) -> FrontendStates:
        """States of all frontends, as each of them is sent."""
        processes = self.processes
        epochs = {rank: child.epoch for rank, child in processes.ready.items()}
        restarts = {rank: each.restarts for rank, each in processes.places.items() if each.epoch}
        return FrontendStates(epochs, processes.failed, restarts, self.doubted.snapshot())

    def _publish_states(self) -> None:
        """To every frontend: those that wait for an answer of another hear of its death so."""
        self.processes.publish(self.states())
