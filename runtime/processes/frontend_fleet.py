"""All frontend processes of one server: supervised, fed with connections and memberships.

The shell over `FrontendDirectory` and `ConnectionBalancer`; a frontend that dies is restarted under
a new epoch. Its module is given by name, since this floor imports nothing of HTTP.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence

import attrs
import msgspec
import trio

from ...engine.errors import BootRefused
from ...engine.messages import Drain, FrontendAddress, FrontendMembership
from ...nurseries.processes.counter_page import CounterMemory, open_counter_memory
from ...nurseries.processes.kernel import KERNEL, Kernel
from ...nurseries.processes.spares import Readiness
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.supervisor import RestartLimitExceeded
from ...transports.control.passed_fds import close_fds
from ..config import RuntimeSettings
from ..errors import ControlCallRefused, NoFrontendLeft
from ..events import ChildFailed, OnEvent
from ..journal.memory import create_journal
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
    PassConnection,
    RootCall,
    RootReply,
)
from .child_process import ChildProcess, run_child_process
from .connection_balancer import ConnectionBalancer
from .control_server import Answer
from .membership import FrontendDirectory, deliver
from .process_supervisor import ProcessSupervisor, RunChild

# A frontend's control socket holds some hundred messages; one that takes none for so long hangs,
# and the connection is better served by another.
PASS_TIMEOUT_S = 2.0
# Calls between frontends that wait for a control socket; pulled out of the air. Each may hold one
# response object.
RELAYS_MAX = 256


@attrs.define(eq=False)
class FrontendFleet:
    """The frontends of one run: `count` processes of `module`.

    `settings_text` is for them alone; `engines` gives the newest snapshot, for INIT.
    """

    module: str
    count: int
    settings: RuntimeSettings
    settings_text: str
    run_id: str
    epochs: Iterator[int]
    engines: Callable[[], EngineMembership]
    on_membership: Callable[[FrontendMembership], None]
    on_event: OnEvent
    # What the root says to a question of an operator.
    answer: Answer
    pass_timeout_s: float = PASS_TIMEOUT_S
    # Of the whole run: spares wait until all its processes are ready.
    readiness: Readiness = attrs.field(factory=Readiness)
    run_child: RunChild = run_child_process
    kernel: Kernel = KERNEL
    # Spreads the delays of restarts.
    chance: random.Random = attrs.field(factory=random.Random)
    directory: FrontendDirectory = attrs.field(factory=FrontendDirectory, init=False)
    balancer: ConnectionBalancer = attrs.field(factory=ConnectionBalancer, init=False)
    processes: ProcessSupervisor = attrs.field(init=False)
    # Set and replaced whenever a frontend came, went, or reported its load.
    changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    # {rank: its journal's descriptor}, held beyond every life of the rank.
    _journals: dict[int, int] = attrs.field(factory=dict, init=False)
    # What all frontends count, beyond every life of each; None before `run`.
    _counters: CounterMemory | None = attrs.field(default=None, init=False)
    # {rank: term under which its present process owns its home}
    _terms: dict[int, int] = attrs.field(factory=dict, init=False)
    # Whether any was ever ready: from then on a refusal is an outage, not a wrong command.
    _has_served: bool = attrs.field(default=False, init=False)
    _draining: bool = attrs.field(default=False, init=False)
    _connections: int = attrs.field(default=0, init=False)
    _relays: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.processes = ProcessSupervisor(
            owner=self,
            role="frontend",
            module=self.module,
            count=self.count,
            sends=ROOT_TO_FRONTEND,
            receives=FRONTEND_TO_ROOT,
            settings=self.settings,
            epochs=self.epochs,
            on_event=self.on_event,
            spares_count=self.settings.spare_frontends,
            fds_of=self._fds_of,
            readiness=self.readiness,
            run_child=self.run_child,
            kernel=self.kernel,
            chance=self.chance,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `frontends`: see `ProcessSupervisor.run`.

        Raises also `OSError` where there are no descriptors. Journals and counters end with it.
        """
        try:
            with open_counter_memory(self.count) as self._counters:
                await self.processes.run(task_status=task_status)
        finally:
            close_fds(self._journals.values())
            self._journals.clear()

    def _fds_of(self, rank: int) -> Sequence[int]:
        """Beside INIT: the rank's journal, if there is one, and the counters."""
        journal = [self._journals[rank]] if rank in self._journals else []
        return [*journal, *([self._counters.fd] if self._counters is not None else [])]

    def _hold_journal(self, rank: int) -> None:
        """Make a journal where there is none. Raises `BootRefused`."""
        if rank in self._journals or not self.settings.journal.enabled:
            return
        try:
            self._journals[rank] = create_journal(rank)
        except OSError as error:
            who = f"frontend {rank}"
            reason = f"the journal of {who} cannot be made: {error.strerror or error}"
            raise BootRefused(who, reason) from error

    async def pass_connection(self, fd: int) -> None:
        """Give an accepted connection to the frontend with the fewest open streams.

        The descriptor stays the caller's. Waits while no frontend is up; one that is dead or hangs
        is passed by. What was sent to one that dies before it read it is lost: its client sees a
        reset, as if the frontend had died a moment later.
        """
        while True:
            rank = self.balancer.choose()
            if rank is None:
                await self.changed.wait()
                continue
            child = self.processes.ready[rank]
            self._connections += 1
            try:
                await child.send(PassConnection(self._connections), self.pass_timeout_s, [fd])
                return
            except trio.BrokenResourceError:
                if self.processes.ready.get(rank) is child:
                    self.balancer.handle_gone(rank)  # dead; its pidfd is about to say so
            except trio.TooSlowError:
                if self.processes.ready.get(rank) is child:
                    self.balancer.handle_not_taken(rank)

    async def drain(self) -> None:
        """Have every frontend accept nothing new, those that are yet to come included."""
        self._draining = True
        async with trio.open_nursery() as nursery:
            for child in self.processes.ready.values():
                self._send_drain(nursery, child)

    def _send_drain(self, nursery: trio.Nursery, child: ChildProcess) -> None:
        nursery.start_soon(child.send_if_possible, Drain(), self.pass_timeout_s, name="drain")

    async def wait_drained(self) -> None:
        """Return when no connection is open any more."""
        while not self.balancer.is_idle():
            await self.changed.wait()

    async def wait_serving(self) -> None:
        """Return when some frontend can send requests to some engine."""
        while not self.balancer.can_serve():
            await self.changed.wait()

    # ---- as the owner of its processes

    def handle_given_up(self, rank: int, error: RestartLimitExceeded) -> None:
        """Declare a frontend failed; the others serve on, if there are.

        Raises `NoFrontendLeft` after the last; `BootRefused` instead if none was ever ready and the
        last said why none can be.
        """
        last, failed = error.__cause__ or error, self.processes.failed
        if rank in self._journals:  # if it is revived, it begins with an empty one
            os.close(self._journals.pop(rank))
        any_left = len(failed) < self.count
        if isinstance(last, BootRefused) and not (any_left or self._has_served):
            raise last
        self.on_event(ChildFailed(f"frontend {rank}", failed[rank]))
        self.on_membership(self.directory.handle_failed(rank))
        if not any_left:
            raise NoFrontendLeft(str(last)) from last
        self._publish_states()

    def restart(self, rank: int) -> None:
        """Begin a frontend anew; one that serves may serve out first, but not at a second order."""
        child, nursery = self.processes.ready.get(rank), self.processes.nursery
        if child is None or nursery is None or not self.balancer.handle_leaving(rank):
            self.processes.restart(rank)
        else:
            nursery.start_soon(self._serve_out, rank, child, name=f"restart-frontend-{rank}")

    async def _serve_out(self, rank: int, child: ChildProcess) -> None:
        """Restart a frontend when its connections have ended, at the latest after the grace."""
        with trio.move_on_after(self.settings.times.grace_s):
            await child.send_if_possible(Drain(), self.pass_timeout_s)
            with waiting_for(f"the connections of frontend {rank} to end"):
                while not self.balancer.is_served_out(rank):
                    await self.changed.wait()
        if self.processes.ready.get(rank) is child:
            self.processes.restart(rank)

    def handle_starting(self, rank: int, epoch: int) -> bytes:
        """A new epoch and term of a frontend; it is listed when it has bound its sockets.

        Raises `BootRefused` where its journal cannot be made.
        """
        self._hold_journal(rank)
        self._terms[rank] = self.directory.handle_starting(rank)
        self._publish_states()
        return msgspec.msgpack.encode(
            FrontendInit(
                run_id=self.run_id,
                rank=rank,
                epoch=epoch,
                term=self._terms[rank],
                settings=self.settings_text,
                engines=self.engines(),
                draining=self._draining,
            )
        )

    def handle_ready(self, rank: int, child: ChildProcess, payload: bytes) -> None:
        """A frontend takes connections; engines may have come or gone since its INIT."""
        where = msgspec.msgpack.decode(payload, type=FrontendReady)
        self._has_served = True
        self.balancer.handle_up(rank)
        child.publish(self.engines())
        self._publish_states()
        if self._draining:  # its INIT may be older than the drain
            assert self.processes.nursery is not None, "it runs"
            self._send_drain(self.processes.nursery, child)
        address = FrontendAddress(
            rank, self._terms[rank], where.input_endpoint, where.output_endpoint
        )
        self.on_membership(self.directory.handle_ready(address))
        self.notify()

    def handle_failing(self, rank: int, cause: str) -> None:
        """A frontend hangs, or has ended: it gets no more connections."""
        self.balancer.handle_gone(rank)

    def handle_hung(self, rank: int, cause: str) -> None:
        """A frontend has no workers."""

    def handle_fault(self, rank: int, table: bytes) -> None:
        """A frontend computes no steps."""

    def handle_gone(self, rank: int, cause: str) -> None:
        """A frontend is gone, its connections with it; engines keep its requests for a while."""
        if self._counters is not None:
            self._counters.retire(rank)
        self.balancer.handle_gone(rank)
        self.on_membership(self.directory.handle_gone(rank))
        self._publish_states()
        self.notify()

    def handle_message(self, rank: int, message: object, fds: Sequence[int]) -> None:
        """A report of load, or a call to another frontend."""
        close_fds(fds)
        match message:
            case FrontendLoad():
                self.balancer.handle_load(rank, message)
                self.notify()
            case ForeignCall() | ForeignReply():
                if (delivery := deliver(message, self._epochs())) is not None:
                    self._send_soon(delivery.frontend, delivery.message, name="foreign-call")
            case RootCall():
                self._send_soon(rank, message, name="root-call")
            case _:
                raise AssertionError(f"the codec let {type(message).__name__} through")

    def _epochs(self) -> dict[int, int]:
        return {rank: child.epoch for rank, child in self.processes.ready.items()}

    def _publish_states(self) -> None:
        """To every frontend: those that wait for an answer of another hear of its death so."""
        self.processes.publish(FrontendStates(self._epochs(), dict(self.processes.failed)))

    def _send_soon(self, rank: int, message: object, *, name: str) -> None:
        """Send to a frontend in a task of its own, so that one that hangs delays no other.

        Dropped above a bound: those who wait for it have deadlines.
        """
        nursery = self.processes.nursery
        if nursery is not None and self._relays < RELAYS_MAX:
            self._relays += 1
            nursery.start_soon(self._send, self.processes.ready[rank], message, name=name)

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
            return RootReply(call.call_id, await self.answer(call.call, call.place))
        except ControlCallRefused as refused:
            return RootReply(call.call_id, "", refused.reason)

    def notify(self) -> None:
        """Wake all that wait for `changed`."""
        self.changed.set()
        self.changed = trio.Event()
