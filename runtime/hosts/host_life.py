"""Life of a host: one incarnation, from its first dial to the end of its lease.

The shell over `HostLease` and an `EngineFleet`. Each generation of the link begins with a `Join`,
which the head answers as the first time; then both say all again. Where the fleet's frontends, its
refused requests and its epochs would be the root's own business, they are the head's here.
"""

import itertools
import os
import random
import signal
from collections import deque
from collections.abc import Callable

import attrs
import msgspec
import trio

from ...engine.control_messages import FrontendMembership
from ...engine.messages import ENGINE_WIRE
from ...nurseries.processes.kernel import Kernel
from ...nurseries.processes.watched import Watch
from ...nurseries.tasks.background import start_background_task_soon, waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import (
    open_service,
    single_errors_unwrapped,
    start_service,
    start_service_soon,
)
from ...nurseries.tasks.task_tree import ProcessTree, task_tree
from ...transports.codec import Codec
from ...transports.links.channel import (
    ChannelEvent,
    Peer,
    PeerNotConnected,
    PeerUp,
    Received,
)
from ...transports.links.zmq_spoke import SpokeChannel, open_spoke
from ..config import RuntimeSettings
from ..continuity.estate import Estate
from ..control.calls import ControlCall, ControlQuestion, SignalOrder
from ..errors import ControlCallRefused, JoinRefusedByHead
from ..events import HostJoined, HostSaid, OnEvent, RunEvent
from ..fleet.engine_fleet import EngineFleet
from ..fleet.fleet_orders import FleetOrders
from ..fleet.fleet_parts import FleetParts
from ..fleet.membership import FrontendDirectory
from ..launch.signals import SignalTarget
from ..messages import EngineMembership
from .epoch_blocks import EpochBlocks
from .host_drain import DrainPhase, HostDrain, requests_in
from .host_messages import (
    DRAIN_WIRE,
    HEAD_TO_HOST,
    HOST_TO_HEAD,
    HOST_WIRE,
    LEASE_OVER,
    VIEW_WIRE,
    EpochsWanted,
    Excused,
    HeadBeat,
    HostDeath,
    HostEvent,
    HostOrder,
    HostPassed,
    HostSnapshot,
    Join,
    JoinRefused,
    Leave,
    MoreEpochs,
    NewsTaken,
    OrderReply,
    Welcome,
)
from .host_plan import HOST_LINK, HostPlan
from .host_view import HostView
from .lease import HostLease

HEAD = Peer("head", 0, 1)
# A head that has not answered by then is not there: the next one is tried.
DIAL_S = 5.0
# Evidence of deaths that waits for the link; more engines than that do not die in its absence.
EVIDENCE_MAX = 64
# Orders that are carried out at the same time.
ORDERS_MAX = 8
# Beats between two sayings of figures.
FIGURES_BEATS = 20
# Time for the last words to be written; the sockets' linger is shorter.
FAREWELL_S = 0.2
# How often engines that drain are asked for what they have.
LOOK_S = 0.1


@attrs.define(eq=False)
class HostLife:
    """Life of a host under one head; `run` returns why it is over.

    `keep` gives the estate of a fleet whose ranks begin with this one.
    """

    plan: HostPlan
    head: str
    incarnation: int
    keep: Callable[[int], Estate]
    on_event: OnEvent
    kernel: Kernel
    chance: random.Random
    now_s: Callable[[], float]
    # Its head wants it to drain, and end.
    on_drain: Callable[[], None]
    fleet: EngineFleet | None = attrs.field(default=None, init=False)
    lease: HostLease | None = attrs.field(default=None, init=False)
    # Version that this life speaks with its head.
    wire: int = attrs.field(default=HOST_WIRE, init=False)
    view: HostView | None = attrs.field(default=None, init=False)
    _orders: FleetOrders | None = attrs.field(default=None, init=False)
    frontends: FrontendDirectory = attrs.field(factory=FrontendDirectory, init=False)
    _epochs: EpochBlocks = attrs.field(init=False)
    _channel: SpokeChannel = attrs.field(init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _welcomed: trio.Event = attrs.field(factory=trio.Event, init=False)
    # The next beat is not to wait for its time.
    _bell: Doorbell = attrs.field(factory=Doorbell, init=False)
    # What the head has not got yet, if the link was down.
    _evidence: deque[HostDeath | HostPassed] = attrs.field(
        factory=lambda: deque(maxlen=EVIDENCE_MAX), init=False
    )
    # When each Join was sent: a lease begins with that of the one that was answered.
    _asked_s: list[float] = attrs.field(factory=list, init=False)
    _cause: str = attrs.field(default="", init=False)
    is_over: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._epochs = EpochBlocks(lambda: self._send(EpochsWanted()))

    async def run(self) -> str:
        """Dial, and serve if the head lets this host in; returns why that is over.

        Raises `JoinRefusedByHead` for what only people can mend, and what a fleet raises.
        Cancellation: the engines are stopped and reaped.
        """
        # The number under which it dials is no rank of an engine.
        me = Peer("host", self.chance.randrange(2**16), self.incarnation)
        codecs = Codec(*HEAD_TO_HOST), Codec(*HOST_TO_HEAD)
        keys = self.plan.keys.hosts
        async with open_spoke(me, *codecs, keys=keys, settings=HOST_LINK) as channel:
            self._channel = channel
            with single_errors_unwrapped():
                async with (
                    open_service(channel.run_deadlines, name="link-deadlines"),
                    open_service(channel.run_output, name="output-socket-thread"),
                    open_service(channel.run_input, name="input-socket-thread"),
                ):
                    channel.connect(HEAD, self.head, "", self.plan.keys.head_public)
                    async with trio.open_nursery() as self._nursery:
                        await start_service(self._nursery, self._receive, name="head-link")
                        await start_service(self._nursery, self._run_lease, name="lease")
        return self._cause

    async def leave(self) -> None:
        """Drain, and say that this host leaves; what is left goes on elsewhere, at once."""
        if self.fleet is not None and self.wire >= DRAIN_WIRE:
            await self._drain(self.fleet)
        self._send(Leave("left"))
        await trio.sleep(FAREWELL_S)

    async def _drain(self, fleet: EngineFleet) -> None:
        drain, orders = HostDrain(self.plan.drain_grace_s, self.now_s()), self._orders
        assert orders is not None, "a fleet has orders"
        self._publish(fleet.directory.handle_draining(emptying=False))
        count = requests_in(await orders.trees())
        self._say(drain.phase.sentence(count))
        while drain.phase is not DrainPhase.OVER and not self.is_over:
            phase = drain.handle_look(count, self.now_s())
            if phase is not None and count:
                self._say(phase.sentence(count))
            if phase is DrainPhase.MOVING:
                self._publish(fleet.directory.handle_draining(emptying=True))
            with waiting_for("its requests to end"):
                await trio.sleep(LOOK_S)
            count = requests_in(await orders.trees())

    def _say(self, text: str) -> None:
        self.on_event(HostSaid(self.plan.name, text, is_warning=False))
        self._send(HostEvent(text))

    # ---- background tasks

    async def _receive(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `head-link`: what the head says."""
        task_status.started()
        while True:
            with waiting_for("the head"):
                events = await self._channel.receive()
            for event in events:
                self._handle(event)

    async def _run_lease(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `lease`: a beat now and then, and the end when none is echoed."""
        task_status.started()
        dial_s = min(DIAL_S, self.plan.patience_s)
        with trio.move_on_after(dial_s), waiting_for("a welcome"):
            await self._welcomed.wait()
        if self.lease is None:
            self._end(f"{self.head} did not let it in within {dial_s:g} s")
            return
        beat_s, lease = self.lease.settings.beat_s, self.lease
        for beats in itertools.count():
            if lease.is_over(now := self.now_s()):
                break
            self._send(lease.handle_sent(now))
            if beats % FIGURES_BEATS == 0:
                self._tell_figures()
            wait_s = max(0.0, min(beat_s, lease.ends_s - now))
            with trio.move_on_after(wait_s), waiting_for("the next beat"):
                await self._bell.wait()
        self._send(Leave(LEASE_OVER))  # if it can be heard
        self._end(f"lost its head: nothing was heard for {lease.settings.lease_s:g} s")

    async def _run_engines(
        self,
        fleet: EngineFleet,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task `engines`: the fleet, with spares."""
        assert self.view is not None, "it is made with the fleet"
        async with (
            open_service(fleet.processes.run, name="fleet"),
            open_service(self.view.run, name="view"),
        ):
            task_status.started()
            fleet.processes.start_spares()
            with waiting_for("the end of the lease"):
                await trio.sleep_forever()

    def _end(self, cause: str) -> None:
        self._cause = cause
        self._nursery.cancel_scope.cancel(cause)

    # ---- what the head says

    def _handle(self, event: ChannelEvent) -> None:
        match event:
            case PeerUp():
                self._send(self._join())
            case Received(message=Welcome() as welcome):
                self._handle_welcome(welcome)
            case Received(message=JoinRefused() as refused):
                self._handle_refused(refused)
            case Received(message=HeadBeat() as beat):
                if self.lease is not None and self.lease.handle_beat(beat, self.now_s()):
                    self._bell.ring()
            case Received(message=FrontendMembership() as membership):
                if self.frontends.handle_snapshot(membership) and self.fleet is not None:
                    self.fleet.processes.publish(membership)
            case Received(message=HostOrder() as order):
                if len(self._nursery.child_tasks) < ORDERS_MAX:
                    start_background_task_soon(self._nursery, self._carry_out, order, name="order")
            case Received(message=Excused(epochs=epochs)):
                if self.fleet is not None:
                    self.fleet.processes.excuse(set(epochs))
            case Received(message=Watch() as watch):
                if self.view is not None:
                    self.view.handle_order(watch)
            case Received(message=NewsTaken()):
                if self.view is not None:
                    self.view.handle_taken()
            case Received(message=MoreEpochs() as more):
                self._epochs.add(range(more.first_epoch, more.first_epoch + more.epochs))

    def _join(self) -> Join:
        plan = self.plan
        if self.lease is None:  # bounded: a life that is not let in is soon over
            self._asked_s.append(self.now_s())
        return Join(
            attempt=len(self._asked_s),
            wire=self.wire,
            engine_wire=ENGINE_WIRE,
            key=plan.keys.hosts.public,
            version=plan.version,
            name=plan.name,
            incarnation=self.incarnation,
            engines=plan.engines,
            model_hash=plan.model_hash,
        )

    def _handle_refused(self, refused: JoinRefused) -> None:
        """Ask again in the version before, if that is the head's. Raises `JoinRefusedByHead`."""
        if HOST_WIRE - 1 == refused.wire < self.wire:
            self.wire = refused.wire
            self._send(self._join())
        elif refused.may_retry:
            self._end(f"is not let in: {refused.reason}")
        else:
            raise JoinRefusedByHead(self.head, refused.reason)

    def _handle_welcome(self, welcome: Welcome) -> None:
        """Let in: begin, if it is the first time; else say again what the head may have missed."""
        if self.fleet is None:
            self.lease = HostLease(welcome.lease, self._asked_s[welcome.attempt - 1])
            self._epochs.add(range(welcome.first_epoch, welcome.first_epoch + welcome.epochs))
            self.fleet = fleet = self._make_fleet(welcome)
            self.view = HostView(self._name, fleet.processes, self._send)
            itself = SignalTarget(os.getpid(), self._signal_soon)
            self._orders = FleetOrders({fleet.processes: fleet.restart}, {self._name: itself})
            ranks = sorted(self.fleet.processes.places)
            self.on_event(HostJoined(self.plan.name, ranks, f"under {self.head}"))
            start_service_soon(self._nursery, self._run_engines, self.fleet, name="engines")
            self._welcomed.set()
        self._tell_evidence()
        if self.view is not None:
            self.view.tell_events()
        self._tell_figures()
        self._publish(self.fleet.directory.snapshot())

    def _make_fleet(self, welcome: Welcome) -> EngineFleet:
        plan, own = self.plan, self.plan.engine
        try:
            settings = msgspec.msgpack.decode(welcome.settings, type=RuntimeSettings)
        except msgspec.MsgspecError as error:  # of another version, which knows other values
            reason = f"its settings cannot be used here: {error}"
            raise JoinRefusedByHead(self.head, reason) from error
        engine = attrs.evolve(
            settings.engine,
            model=own.model,
            device=own.device,
            isa=own.isa or settings.engine.isa,
            threads=own.threads or settings.engine.threads,
        )
        parts = FleetParts(
            attrs.evolve(
                settings, engine=engine, engines=plan.engines, spare_engines=plan.spare_engines
            ),
            self._handle_event,
            run_id=welcome.run_id,
            epochs=self._epochs,
            kernel=self.kernel,
            chance=self.chance,
        )
        return EngineFleet(
            parts=parts,
            frontends=self.frontends,
            on_membership=self._publish,
            on_watched=self._handle_watched,
            module=plan.engine_module,
            first_rank=welcome.first_rank,
            estate=self.keep(welcome.first_rank),
            evidence=self,
            link_keys=welcome.link_keys,
        )

    # ---- what the head is told

    def handle_death(self, positions: dict[bytes, int], epoch: int) -> None:
        """Evidence of an engine's death, for the head, which has that of all hosts."""
        self._evidence.append(HostDeath(positions, epoch))
        self._tell_evidence()

    def handle_passed(self, positions: dict[bytes, int]) -> None:
        """Suspects that have passed."""
        self._evidence.append(HostPassed(positions))
        self._tell_evidence()

    def _tell_evidence(self) -> None:
        while self._evidence and self._send(self._evidence[0]):
            self._evidence.popleft()

    def _publish(self, membership: EngineMembership) -> None:
        self._send(HostSnapshot(membership.number, membership))

    def _handle_event(self, event: RunEvent) -> None:
        self.on_event(event)
        if self.view is not None:
            self.view.handle_event(event)

    def _handle_watched(self, text: str) -> None:
        if self.view is not None:
            self.view.watch.handle_said(text)

    def _tell_figures(self) -> None:
        if self.view is not None and self.lease is not None and self.wire >= VIEW_WIRE:
            self._send(self.view.figures(self.lease.take_round_trip()))

    def _send(self, message: object) -> bool:
        """Whether the link is up; what is lost is said again in its next generation."""
        try:
            self._channel.send(HEAD, message)
        except PeerNotConnected:
            return False
        return True

    # ---- orders

    def _signal_soon(self, number: signal.Signals) -> None:
        """Signal this process once the answer is on its way."""

        async def send() -> None:
            await trio.sleep(FAREWELL_S)
            os.kill(os.getpid(), number)

        start_background_task_soon(self._nursery, send, name="farewell")

    async def _carry_out(self, order: HostOrder) -> None:
        try:
            reply = OrderReply(order.call_id, await self._answer(order.question))
        except ControlCallRefused as refused:
            reply = OrderReply(order.call_id, "", refused.reason, refused.code)
        self._send(reply)

    async def _answer(self, question: ControlQuestion) -> str:
        assert self._orders is not None, "the head asks whom it let in"
        orders, found = self._orders, object()
        match question:
            case ControlQuestion(ControlCall.RESTART, place) if place is not None:
                found = {"restarted": orders.restart(place)}
            case ControlQuestion(ControlCall.SIGNAL, order=SignalOrder() as order):
                found = orders.signal(order)
            case ControlQuestion(ControlCall.DRAIN):
                self.on_drain()
                found = {"draining": self._name}
            case ControlQuestion(ControlCall.TREE):
                found = ProcessTree(
                    self._name,
                    os.getpid(),
                    facts={"head": self.head, "incarnation": self.incarnation, **orders.failed()},
                    tasks=task_tree(),
                    processes=await orders.trees(),
                )
            case _:
                raise ControlCallRefused(f"a host is not asked for {question.call}", "bad_question")
        return msgspec.json.encode(found).decode()

    @property
    def _name(self) -> str:
        return f"host {self.plan.name}"
