"""Hosts of a head: other machines that join, supervised by lease instead of pidfd.

The shell over `HostDirectory` and a `HostWatch` for each. A host has one nursery child here, from
its first `Join` to its end: it sends beats, and looks whether any came. What a host's engines are
is listed among the head's own (`EngineDirectory`), so that frontends see one membership; what they
died of is judged here, with all others'.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Set

import attrs
import msgspec
import trio

from ...engine.control_messages import FrontendMembership
from ...nurseries.processes.watched import Row, Watch, now_ms
from ...nurseries.tasks.background import start_background_task_soon, waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import open_service, single_errors_unwrapped, start_service
from ...nurseries.tasks.task_tree import ProcessTree
from ...transports.codec import Codec
from ...transports.links.channel import (
    ChannelEvent,
    Peer,
    PeerDown,
    PeerNotConnected,
    PeerUp,
    Received,
)
from ...transports.links.curve import make_link_keys
from ...transports.links.zmq_channel import HubChannel, open_hub
from ..control.calls import ControlCall, ControlQuestion, EngineState, Place, PlaceState, Role
from ..errors import ControlCallRefused
from ..events import HostHeard, HostJoined, HostLost, HostSaid, HostSilent, OnEvent
from ..fleet.elsewhere import HeadParts
from ..fleet.engine_fleet import EngineFleet
from ..fleet.membership import FrontendDirectory
from ..messages import EngineMembership, HostReports
from .host_board import HostBoard
from .host_directory import HostDirectory, HostFault
from .host_guests import HostGuests
from .host_keys import ClusterKeys
from .host_messages import (
    DRAIN_WIRE,
    HEAD_TO_HOST,
    HOST_TO_HEAD,
    LEASE_OVER,
    VIEW_WIRE,
    EpochsWanted,
    Excused,
    HostBeat,
    HostDeath,
    HostEvent,
    HostFigures,
    HostNews,
    HostOrder,
    HostPassed,
    HostSnapshot,
    Join,
    JoinRefused,
    LeaseSettings,
    Leave,
    MoreEpochs,
    NewsTaken,
    OrderReply,
    Welcome,
)
from .host_plan import HOST_LINK
from .joined_host import HostLauncher, JoinedHost
from .lease import HostState, HostWatch

# An order that is not answered by then: the host is slow, or away. A frontend waits for a second
# more, for the way from here.
ORDER_TIMEOUT_S = 2.0
# Between two reports to frontends, each of which wakes up for one; a changed state goes at once.
REPORTS_S = 2.0


@attrs.define(eq=False)
class HostFleet:
    """Hosts of one head. `on_membership` hears of every change of the engines that are listed.

    `endpoint` is bound by `run`, before which nobody joins.
    """

    endpoint: str
    guests: HostGuests
    directory: HostDirectory
    engines: EngineFleet
    frontends: FrontendDirectory
    on_membership: Callable[[EngineMembership], None]
    on_event: OnEvent
    now_s: Callable[[], float]
    lease: LeaseSettings = attrs.field(factory=LeaseSettings)
    launcher: HostLauncher | None = attrs.field(default=None, init=False)
    # Gets what hosts say for viewers, and what frontends show of hosts.
    on_said: Callable[[str], None] = lambda text: None
    on_reports: Callable[[HostReports], None] = lambda reports: None
    board: HostBoard = attrs.field(init=False)
    # Number of the latest `Watch` to hosts; 0: there is no viewer.
    _watch_number: int = attrs.field(default=0, init=False)
    # There is something else to report.
    _changed: Doorbell = attrs.field(factory=Doorbell, init=False)
    hosts: dict[str, JoinedHost] = attrs.field(factory=dict, init=False)
    _by_peer: dict[Peer, JoinedHost] = attrs.field(factory=dict, init=False)
    _channel: HubChannel = attrs.field(init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _call_ids: "itertools.count[int]" = attrs.field(factory=itertools.count, init=False)
    # {call id: where its answer goes}, bounded by the orders of people.
    _calls: dict[int, trio.MemorySendChannel[OrderReply]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.board = HostBoard(self.directory)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `hosts`; started when hosts can join. Never returns unless cancelled.

        Raises `EndpointInUse`, `OSError` where the endpoint cannot be bound. Cancellation: hosts
        hear nothing more, and end by their leases.
        """
        codecs = Codec(*HOST_TO_HEAD), Codec(*HEAD_TO_HOST)
        me = Peer("head", 0, 1)
        hub = open_hub(
            me,
            *codecs,
            input_endpoint=self.endpoint,
            output_endpoint="",
            keys=self.guests.keys.head,
            settings=HOST_LINK,
        )
        async with hub as channel:
            self._channel = channel
            self._allow()
            with single_errors_unwrapped():
                async with (
                    open_service(channel.run_deadlines, name="link-deadlines"),
                    open_service(channel.run_output, name="output-socket-thread"),
                    open_service(channel.run_input, name="input-socket-thread"),
                    open_service(self._run_reports, name="reports"),
                    trio.open_nursery() as self._nursery,
                ):
                    if self.launcher is not None:
                        await start_service(self._nursery, self.launcher.run, name="launcher")
                    task_status.started()
                    await self._receive()

    @property
    def address(self) -> str:
        """Endpoint that was bound, once `run` has started."""
        return self._channel.endpoints[0]

    def make_ticket(self, name: str) -> ClusterKeys:
        """Keys for the host of this name, let in from now on; those of before are no more."""
        self.withdraw(name)
        ticket = self.guests.make_ticket(name)
        self._allow()
        return ticket

    def withdraw(self, name: str, cause: str = "was given up by its launcher") -> None:
        """What comes by a ticket of this host is not heard any more, and it is lost."""
        if not self.guests.withdraw(name):
            return
        self._allow()
        if (host := self.hosts.get(name)) is not None:
            self._lose(host, cause)

    def reload(self) -> list[str]:
        """Read the keys again; hosts that come by one that is retired are refused. Which.

        One that does not say by which it came is not heard any more, if that is retired, and lost
        by its lease. Raises `ControlCallRefused`.
        """
        self.guests.reload()
        self._allow()
        allowed = {b"", *self.guests.let_in()}
        refused = [host for host in self.hosts.values() if host.key not in allowed]
        for host in refused:
            self._send(host, JoinRefused("its key was retired", wire=self.directory.wire))
            self._lose(host, "its key was retired", keeps_link=True)
        return [host.name for host in refused]

    def _allow(self) -> None:
        self._channel.allow(dict.fromkeys(self.guests.let_in()))

    def hears(self, name: str) -> bool:
        """Whether this host has joined, and speaks."""
        host = self.hosts.get(name)
        return host is not None and host.watch.state is HostState.UP

    def to_reap(self) -> set[int]:
        """Processes of this machine that the launcher has."""
        return set() if self.launcher is None else self.launcher.to_reap()

    def publish(self, membership: FrontendMembership) -> None:
        """Tell all hosts which frontends there are."""
        for host in self.hosts.values():
            self._send(host, membership)

    def excuse(self, epochs: Set[int]) -> None:
        """Requests ended these lives: hosts count those of theirs toward nothing."""
        for host in self.hosts.values():
            self._send(host, Excused(sorted(epochs)))

    # ---- what hosts say

    async def _receive(self) -> None:
        while True:
            with waiting_for("hosts"):
                events = await self._channel.receive()
            for event in events:
                self._handle(event)

    def _handle(self, event: ChannelEvent) -> None:
        host = self._by_peer.get(event.peer)
        match event:
            case PeerUp() if host is not None:
                host.watch.handle_up()
            case PeerDown() if host is not None:
                self._note(host, host.watch.handle_down(self.now_s()))
            case PeerDown(peer=peer):
                self._channel.forget(peer)  # not let in: it comes again as another incarnation
            case Received(peer=peer, message=Join() as join):
                self._handle_join(peer, join)
            case Received(message=message) if host is not None:
                try:
                    self._handle_message(host, message)
                except HostFault as fault:
                    self._lose(host, f"given up: {fault}")

    def _handle_join(self, peer: Peer, join: Join) -> None:
        now, own = self.now_s(), self.engines.processes.places.keys()
        admission = self.directory.handle_join(join, now, own)
        if isinstance(admission, JoinRefused):
            self._send_to(peer, admission)
            return
        if admission.replaced is not None and (before := self.hosts.get(join.name)) is not None:
            self._lose(before, "replaced by another incarnation")
        host = self.hosts.get(join.name)
        if host is None:
            watch = HostWatch(self.lease, now)
            host = JoinedHost(admission, peer, watch, make_link_keys(), join.key)
            self.hosts[join.name] = self._by_peer[peer] = host
            self.board.handle_joined(join.name, admission.ranks, host.watch)
            self.directory.handle_key(admission.host, host.link_keys.public)
            self.on_event(HostJoined(join.name, list(admission.ranks), admission.differs))
            self._list(host)
            start_background_task_soon(self._nursery, self._watch, host, name=f"host-{join.name}")
        else:
            self._note(host, host.watch.handle_join(now))
            host.bell.ring()  # its lease may be nearly over
        self._send(
            host,
            Welcome(
                run_id=self.engines.parts.run_id,
                first_rank=admission.ranks.start,
                first_epoch=admission.epochs.start,
                epochs=len(admission.epochs),
                settings=msgspec.msgpack.encode(self.engines.settings),
                lease=self.lease,
                link_keys=host.link_keys,
                attempt=join.attempt,
            ),
        )
        self._send(host, self.frontends.snapshot())
        self._send_watch(host)

    def _handle_message(self, host: JoinedHost, message: object) -> None:
        """Raises `HostFault`."""
        who = host.admission.host
        match message:
            case HostBeat():
                self._note(host, host.watch.handle_beat(message, self.now_s()))
            case HostSnapshot():
                if self.directory.handle_snapshot(who, message):
                    self._list(host)
            case HostDeath(positions=positions, epoch=epoch):
                self.engines.evidence.handle_death(positions, epoch)
            case HostPassed(positions=positions):
                self.engines.evidence.handle_passed(positions)
            case OrderReply(call_id=call_id):
                if (waiting := self._calls.get(call_id)) is not None:
                    waiting.send_nowait(message)
            case HostEvent():
                self.on_event(_said(host, message))
            case HostFigures():
                self.board.handle_figures(host.name, message)
            case HostNews(texts=texts):
                for text in self.board.handle_news(host.name, texts, now_ms()):
                    self.on_said(text)
                self._send(host, NewsTaken())
            case EpochsWanted():
                if (block := self.directory.handle_epochs_wanted(who)) is not None:
                    self._send(host, MoreEpochs(block.start, len(block)))
            case Leave(reason=reason):
                self._lose(host, reason, has_left=reason != LEASE_OVER)

    # ---- supervision

    async def _watch(self, host: JoinedHost) -> None:
        """Background task of a host: beats to it, and a look at those from it, until its end."""
        while not host.is_over:
            self._send(host, host.watch.next_beat(self.now_s()))
            now = self.now_s()
            self._note(host, host.watch.handle_timeout(now))
            wait_s = min(self.lease.beat_s, host.watch.next_deadline() - now)
            with trio.move_on_after(max(0.0, wait_s)), waiting_for("the next beat"):
                await host.bell.wait()

    def _note(self, host: JoinedHost, state: HostState | None) -> None:
        """The watch has found something out."""
        if state is None or host.is_over:
            return
        if state is HostState.LOST:
            self._lose(host, "lost: it says nothing, or its connection ended and did not come back")
            return
        self.directory.handle_state(host.admission.host, state)
        is_silent = state is HostState.SILENT
        self.on_event(HostSilent(host.name) if is_silent else HostHeard(host.name))
        host.bell.ring()  # one that is heard again waits for an echo
        self._list(host)

    def _lose(
        self, host: JoinedHost, cause: str, *, has_left: bool = False, keeps_link: bool = False
    ) -> None:
        """Unlist it, fence it, and end its task. Its own end is its lease's.

        With `keeps_link` what was sent to it last arrives, and the host ends the link.
        """
        host.is_over = True
        host.bell.ring()
        self.directory.handle_lost(host.admission.host)
        if self.hosts.get(host.name) is host:
            del self.hosts[host.name]
        self._by_peer.pop(host.peer, None)
        if not keeps_link:
            self._channel.forget(host.peer)
        self.on_said(self.board.handle_over(host.name, now_ms(), is_lost=not has_left))
        self.on_event(HostLost(host.name, cause, has_left))
        self._list(host)

    def _list(self, host: JoinedHost) -> None:
        """List what it has now, or nothing, among the head's engines."""
        self._changed.ring()
        name, directory = host.name, self.engines.directory
        members = self.directory.members(name)
        for member in members:
            if (ready := member.ready) is None:
                continue
            self.engines.ready_once.set()
            if host.compared.get(member.rank) != member.epoch:
                host.compared[member.rank] = member.epoch
                self.engines.compare(member.rank, member.epoch, ready)
        directory.reserve(name, () if host.is_over else host.admission.ranks)
        directory.handle_link_keys(self.directory.link_keys())
        self.on_membership(directory.handle_host(name, members, self.directory.removed(name)))

    # ---- what is seen of hosts

    def watch(self, number: int) -> None:
        """Have all hosts say everything for viewers, then what changes; 0: say no more."""
        self._watch_number = number
        self.board.handle_watch()
        for host in self.hosts.values():
            self._send_watch(host)

    def _send_watch(self, host: JoinedHost) -> None:
        if host.admission.wire >= VIEW_WIRE:
            self._send(host, Watch(self._watch_number))

    def rows(self) -> Iterable[Row]:
        """Rows of the hosts for viewers, as seen from here."""
        return self.board.rows(self.now_s(), now_ms())

    async def _run_reports(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `reports`: to frontends, while there are hosts."""
        task_status.started()
        while True:
            wait_s = REPORTS_S if self.hosts else math.inf
            with trio.move_on_after(wait_s), waiting_for("something to report"):
                await self._changed.wait()
            self._changed.clear()
            self.on_reports(HostReports(self.board.reports(self.now_s())))

    # ---- orders of people

    def has(self, place: str) -> bool:
        """Whether a host has this place, or is it."""
        return self._host_of(place) is not None

    def _host_of(self, place: str) -> JoinedHost | None:
        words = place.split()
        if words[:1] == ["host"] and len(words) > 1:
            return self.hosts.get(words[1])
        if words[:1] != ["engine"] or len(words) < 2 or not words[1].isdecimal():
            return None
        rank = int(words[1])
        return next((h for h in self.hosts.values() if rank in h.admission.ranks), None)

    async def answer(self, place: str, question: ControlQuestion) -> str:
        """Have the host of this place carry it out. Raises `ControlCallRefused`."""
        host = self._host_of(place)
        if host is None:
            raise ControlCallRefused(f"there is no {place} on any host by now", "no_host")
        if question.call is ControlCall.DRAIN and host.admission.wire < DRAIN_WIRE:
            reason = f"{place} is of a version that is drained by SIGTERM alone"
            raise ControlCallRefused(reason, "bad_question")
        return await self._ask(host, question)

    async def _ask(self, host: JoinedHost, question: ControlQuestion) -> str:
        call_id = next(self._call_ids)
        send, receive = trio.open_memory_channel[OrderReply](1)
        self._calls[call_id] = send
        try:
            self._send(host, HostOrder(call_id, question))
            with trio.move_on_after(ORDER_TIMEOUT_S), waiting_for(f"an answer of {host.name}"):
                reply = await receive.receive()
                if reply.refusal:
                    raise ControlCallRefused(reply.refusal, reply.code)
                return reply.text
        finally:
            del self._calls[call_id]
        reason = f"host {host.name} has not answered within {ORDER_TIMEOUT_S:g} s"
        raise ControlCallRefused(reason, "host_silent")

    async def trees(self) -> list[ProcessTree]:
        """Trees of all hosts; of one that does not answer what is known of it."""
        hosts, trees = list(self.hosts.values()), dict[str, ProcessTree]()

        async def ask(host: JoinedHost) -> None:
            try:
                if host.watch.silent_since is not None:
                    raise ControlCallRefused(f"host {host.name} is silent", "host_silent")
                text = await self._ask(host, ControlQuestion(ControlCall.TREE))
                trees[host.name] = msgspec.json.decode(text, type=ProcessTree)
            except ControlCallRefused:
                since_s = host.watch.silent_since
                said = "no answer" if since_s is None else f"{self.now_s() - since_s:.1f} s"
                facts: dict[str, str | int | float] = {"silent for": said}
                trees[host.name] = ProcessTree(f"host {host.name}", 0, facts=facts)

        async with trio.open_nursery() as nursery:
            for host in hosts:
                start_background_task_soon(nursery, ask, host, name="tree-request")
        others = [] if self.launcher is None else await self.launcher.trees()
        return [trees[name] for name in sorted(trees)] + others

    def places(self) -> list[PlaceState]:
        """Places of all hosts' engines as they are now."""
        return [
            PlaceState(
                Place(Role.ENGINE, member.rank),
                EngineState.SILENT if member.silent else member.state,
                member.epoch,
                f"on host {name}" + ", which drains" * member.draining,
            )
            for name in sorted(self.hosts)
            for member in self.directory.members(name)
        ]

    # ---- sending

    def _send(self, host: JoinedHost, message: object) -> None:
        self._send_to(host.peer, message)

    def _send_to(self, peer: Peer, message: object) -> None:
        try:
            self._channel.send(peer, message)
        except PeerNotConnected:
            pass  # its next `Join` is answered with all of it


def _said(host: JoinedHost, event: HostEvent) -> HostSaid:
    mark = {"place": event.place, "epoch": event.epoch, "kind": event.kind, "text": event.cause}
    return HostSaid(host.name, event.text, event.is_warning, mark if event.place else None)


MakeLauncher = Callable[[HeadParts, HostFleet], HostLauncher]
