"""All frontend processes of one server: supervised, fed with connections and memberships.

A frontend that has served is never given up: its streams and connections wait for its next life.
Their module is given by name, since this floor imports nothing of HTTP.
"""

import math
from collections.abc import Callable
from functools import partial

import attrs
import msgspec
import trio

from ...engine.errors import BootRefused
from ...engine.messages import Drain, FrontendMembership
from ...nurseries.processes.counter_page import CounterMemory, open_counter_memory
from ...nurseries.processes.hang_watch import BLOCKED_S
from ...nurseries.processes.watched import Watched
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.changes import Changes
from ...transports.control.passed_fds import close_fds
from ..config import RuntimeSettings
from ..errors import ControlCallRefused, NoFrontendLeft
from ..events import ChildFailed
from ..hands import TABLE_BYTES
from ..messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    ForeignCall,
    ForeignReply,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    HandOver,
    RootCall,
    RootReply,
    WatchServer,
)
from .child_end import ChildEnd, EndKind
from .child_process import BecameFailing, BecameReady, ChildProcess, Gone, Said, Suspected
from .connection_balancer import ConnectionBalancer
from .control_server import Answer
from .doubted_contents import DoubtedContents
from .frontend_homes import FrontendHomes
from .held_connections import HeldConnections
from .launcher import ChildKind
from .membership import FrontendDirectory, deliver
from .process_supervisor import (
    ChildStart,
    FleetParts,
    GivenUp,
    PlaceEvent,
    ProcessSupervisor,
)
from .unavailable import UNAVAILABLE_AFTER_S, answer_unavailable

# A control socket holds some hundred messages: who takes none for so long hangs; another serves.
PASS_TIMEOUT_S = 2.0
# Calls between frontends that wait for a control socket, each with a response; out of the air.
RELAYS_MAX = 256


@attrs.define(eq=False)
class FrontendFleet:
    """The frontends of one run: `count` processes of `module`.

    `settings_text` is for them alone; `engines` gives the newest snapshot, for INIT.
    """

    module: str  # by name, since this floor imports nothing of HTTP
    count: int
    parts: FleetParts
    settings_text: str
    engines: Callable[[], EngineMembership]
    on_membership: Callable[[FrontendMembership], None]
    answer: Answer  # what the root says to a question of an operator
    # Gets what a frontend says of itself while it is watched, or its wish to watch others.
    on_watch: Callable[[int, Watched | WatchServer], None] = lambda rank, message: None
    on_ready: Callable[[int], None] = lambda rank: None  # a frontend takes orders
    pass_timeout_s: float = PASS_TIMEOUT_S
    unavailable_s: float = UNAVAILABLE_AFTER_S
    directory: FrontendDirectory = attrs.field(factory=FrontendDirectory, init=False)
    balancer: ConnectionBalancer = attrs.field(factory=ConnectionBalancer, init=False)
    held: HeldConnections = attrs.field(factory=HeldConnections, init=False)
    doubted: DoubtedContents = attrs.field(init=False)
    processes: ProcessSupervisor = attrs.field(init=False)
    changed: Changes = attrs.field(factory=Changes, init=False)  # see `notify`
    homes: FrontendHomes = attrs.field(init=False)  # with their journals, beyond each life
    _counters: CounterMemory | None = attrs.field(default=None, init=False)  # None before `run`
    _draining: bool = attrs.field(default=False, init=False)
    _away_s: float = attrs.field(default=math.inf, init=False)  # when the last ready one went
    _connections: int = attrs.field(default=0, init=False)
    _relays: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.doubted = DoubtedContents(self.parts.on_event)
        self.homes = FrontendHomes(self.directory, self.on_membership)
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
            count=self.count,
            parts=self.parts,
            spares_count=self.settings.spare_frontends,
            preparation=self.settings_text.encode(),
            gives_up_served=False,  # a client may make it die
        )

    @property
    def settings(self) -> RuntimeSettings:
        """The settings of the run."""
        return self.parts.settings

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `frontends`: see `ProcessSupervisor.run`.

        Raises also `OSError` where there are no descriptors. Journals and counters end with it.
        """
        try:
            with open_counter_memory(self.count) as self._counters:
                await self.processes.run(task_status=task_status)
        finally:
            self.held.close()
            self.homes.close()

    def descriptors(self, rank: int) -> dict[str, int]:
        """Beside INIT, behind the progress page: those that there are, by name."""
        folder = self.homes.folder
        fds = {
            "journal": self.homes.journal(rank),
            "lock": None if folder is None else folder.lock_fd,
            "connections": self.held.memory(rank),
            "counters": None if self._counters is None else self._counters.fd,
        }
        return {name: fd for name, fd in fds.items() if fd is not None}

    def _hold_journal(self, rank: int) -> None:
        """Make slots and a journal for a rank, where there are none. Raises `BootRefused`."""
        who = f"frontend {rank}"
        try:
            if not self.settings.journal.disabled:
                self.homes.hold(rank)
            if self.settings.takes_over:
                self.held.open_rank(rank)
        except OSError as error:
            reason = f"the journal of {who} cannot be made: {error.strerror or error}"
            raise BootRefused(who, reason) from error

    async def pass_connection(self, fd: int) -> None:
        """Give an accepted connection to the frontend with the fewest open streams.

        The descriptor stays the caller's. Waits while no frontend is up, but answers its client
        itself when none was for `unavailable_s`; one that is dead or hangs is passed by. What was
        sent to one that dies is passed to its successor if it is held, also if it was not read;
        else its client sees a reset.
        """
        while True:
            rank = self.balancer.choose()
            if rank is None:
                with trio.move_on_at(self._away_s + self.unavailable_s) as patience:
                    await self.changed.wait()
                if patience.cancelled_caught:
                    return answer_unavailable(fd)
                continue
            child = self.processes.ready[rank]
            self._connections += 1
            held = self.held.offer(rank, fd, self._connections)
            message = self.held.message(self._connections, held)
            try:
                await child.send(message, self.pass_timeout_s, [fd])
                if held is not None:
                    self.held.handle_taken(rank, held, child.epoch)
                return None
            except trio.BrokenResourceError:
                if self.processes.ready.get(rank) is child:
                    self.balancer.handle_gone(rank)  # dead; its pidfd is about to say so
            except trio.TooSlowError:
                if self.processes.ready.get(rank) is child:
                    self.balancer.handle_not_taken(rank)
            if held is not None:
                self.held.handle_not_taken(rank, held)

    async def drain(self) -> None:
        """Have every frontend accept nothing new, those that are yet to come included."""
        self._draining = True
        async with trio.open_nursery() as nursery:
            for child in self.processes.ready.values():
                nursery.start_soon(child.send_if_possible, Drain(), self.pass_timeout_s)

    async def wait_drained(self) -> None:
        """Return when no connection is open, or waits for a successor."""
        while not self.balancer.is_idle(self.held.ranks()):
            await self.changed.wait()

    async def wait_serving(self) -> None:
        """Return when some frontend can send requests to some engine."""
        while not self.balancer.can_serve():
            await self.changed.wait()

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
        else:
            self.held.handle_given_up(rank)
        self.notify()
        self._publish_states()

    async def _end_stuck(self, rank: int, reason: str) -> None:
        """Task: end the connections of a frontend that hangs in the kernel for too long.

        They wait as long as a request waits for an engine.
        """
        with trio.move_on_after(self.settings.replay.replay_wait_s):
            while self.processes.failed.get(rank) is reason:
                await self.changed.wait()
        if self.processes.failed.get(rank) is reason:
            self.held.end_waiting(rank)
            self.notify()

    def restart(self, rank: int) -> None:
        """Begin a frontend anew; one that serves may serve out first, but not at a second order.

        One whose process hangs in the kernel, and may still write, begins with an empty home.
        """
        if self.processes.is_stuck(rank):
            self.held.end_waiting(rank)
            self.homes.lose(rank)
        child = self.processes.ready.get(rank)
        if child is not None and self.balancer.handle_leaving(rank):
            self.processes.start_task(self._serve_out, rank, child, name=f"restart-frontend-{rank}")
        else:
            self._begin_anew(rank)

    async def _serve_out(self, rank: int, child: ChildProcess) -> None:
        """Restart a frontend when its connections have ended, at the latest after the grace."""
        with trio.move_on_after(self.settings.times.grace_s):
            order = HandOver() if not self.settings.journal.disabled else Drain()
            await child.send_if_possible(order, self.pass_timeout_s)
            with waiting_for(f"the connections of frontend {rank} to end"):
                while self.balancer.is_busy(rank):
                    await self.changed.wait()
        if self.processes.ready.get(rank) is child:
            self._begin_anew(rank)

    def _begin_anew(self, rank: int) -> None:
        """Restart a frontend now; with a journal it is killed, so that its next life goes on."""
        child, is_idle = self.processes.ready.get(rank), self.balancer.is_idle_at(rank)
        if child is not None and (self.settings.journal.disabled or is_idle):
            self.held.handle_stopping(rank)  # in order, it ends them
        elif child is not None:
            child.kill()
        self.processes.restart(rank)

    # ---- as the owner of its places

    def handle_starting(self, rank: int, epoch: int) -> ChildStart:
        """A new epoch and term of a frontend, listed when it is READY. Raises `BootRefused`."""
        self._hold_journal(rank)
        term, died_ns = self.homes.handle_starting(rank, epoch)
        self._publish_states()
        descriptors = self.descriptors(rank)
        init = FrontendInit(
            run_id=self.parts.run_id,
            rank=rank,
            epoch=epoch,
            term=term,
            settings=self.settings_text,
            engines=self.engines(),
            draining=self._draining,
            descriptors=["progress", *descriptors],
            died_ns=died_ns,
            doubted=self.doubted.snapshot(),
        )
        return ChildStart(msgspec.msgpack.encode(init), list(descriptors.values()))

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """A frontend takes connections, says something, or is going.

        Raises `NoFrontendLeft` when the last is given up; `BootRefused` instead if none was ever
        ready and the last said why none can be.
        """
        match event:
            case BecameReady(child, payload):
                self._handle_ready(rank, child, msgspec.msgpack.decode(payload, type=FrontendReady))
            case Said(message, fds):
                close_fds(fds)
                self._handle_message(rank, message)
            case Suspected(table):  # a content that was in hand, whichever
                epoch = self.processes.places[rank].epoch
                if self.doubted.handle_fault(rank, epoch, table):
                    self.processes.excuse({epoch})
            case BecameFailing():  # it gets no more connections
                self._handle_failing(rank)
            case Gone(end):  # its requests are kept for a while, and its connections if held
                if self._counters is not None:
                    self._counters.retire(rank)
                self._handle_failing(rank)
                self.held.handle_gone(rank, is_own_fault=end.is_own_fault)
                self.homes.handle_gone(rank, is_own_fault=end.is_own_fault)
                self._publish_states()
                self.notify()
            case GivenUp(end):
                self._handle_given_up(rank, end)

    def _handle_ready(self, rank: int, child: ChildProcess, where: FrontendReady) -> None:
        self._away_s = math.inf
        if where.has_slots:
            held = self.held.handle_ready(rank, child.epoch)
            self.balancer.handle_up(rank, passed=len(held))
            pass_again = partial(self.held.pass_again, rank, child, held, self.pass_timeout_s)
            self.processes.start_task(pass_again, name=f"takeover-{rank}")
        else:
            self.held.handle_given_up(rank)
            self.balancer.handle_up(rank)
        child.publish(self.engines())  # some may have come or gone since its INIT
        self._publish_states()
        if self._draining:  # its INIT may be older than the drain
            order = partial(child.send_if_possible, Drain(), self.pass_timeout_s)
            self.processes.start_task(order, name="drain")
        self.homes.handle_ready(rank, where)
        self.on_ready(rank)
        self.notify()

    def _handle_failing(self, rank: int) -> None:
        self.balancer.handle_gone(rank)
        if self.balancer.is_empty:
            self._away_s = min(self._away_s, trio.current_time())

    def _handle_message(self, rank: int, message: object) -> None:
        match message:
            case FrontendLoad():
                self.held.handle_ended(rank, message.ended)
                self.balancer.handle_load(rank, message)
                if self.doubted.handle_passed(message.passed):
                    self._publish_states()
                self.notify()
            case ForeignCall() | ForeignReply():
                epochs = {rank: child.epoch for rank, child in self.processes.ready.items()}
                if (receiver := deliver(message, epochs)) is not None:
                    self._send_soon(receiver, message, name="foreign-call")
            case Watched() | WatchServer():
                self.on_watch(rank, message)
            case RootCall():
                self._send_soon(rank, message, name="root-call")
            case _:
                raise AssertionError(f"the codec let {type(message).__name__} through")

    def _publish_states(self) -> None:
        """To every frontend: those that wait for an answer of another hear of its death so."""
        states = self.homes.states(self.processes.ready, self.processes.failed)
        self.processes.publish(attrs.evolve(states, doubted=self.doubted.snapshot()))

    def _send_soon(self, rank: int, message: object, *, name: str) -> None:
        """Send in a task of its own; above a bound not at all, as who waits has a deadline."""
        if self._relays < RELAYS_MAX:
            self._relays += 1
            self.processes.start_task(self._send, self.processes.ready[rank], message, name=name)

    async def _send(self, child: ChildProcess, message: object) -> None:
        """Send one message; of an operator's question it is the answer that is sent."""
        try:
            if isinstance(message, RootCall):
                message = await self._reply_to(message)
            await child.send_if_possible(message, self.pass_timeout_s)
        finally:
            self._relays -= 1

    async def _reply_to(self, call: RootCall) -> RootReply:
        try:
            return RootReply(call.call_id, await self.answer(call.question))
        except ControlCallRefused as refused:
            return RootReply(call.call_id, "", refused.reason, refused.code)

    def notify(self) -> None:
        """Wake who waits for `changed`: a frontend came, went, or reported its load."""
        self.changed.notify()
