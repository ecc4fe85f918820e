"""Simulated machines beside the root's: hosts of one engine each, with the real lease, watch and
directory, over a link that is slow, cut both ways or one, and lost with its host.

A host's engines are processes of the simulated kernel, in a fleet of the host's own; when the host
ends they end with it. The head's shell is in small here, since nothing of it decides.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from ....engine.control_messages import FrontendMembership
from ....runtime.config import RuntimeSettings
from ....runtime.fleet.engine_fleet import EngineFleet
from ....runtime.fleet.fleet_parts import FleetParts
from ....runtime.fleet.root import Root
from ....runtime.hosts.host_directory import HostDirectory, HostFault, HostId
from ....runtime.hosts.host_messages import (
    HOST_WIRE,
    HeadBeat,
    HostBeat,
    HostDeath,
    HostPassed,
    HostSnapshot,
    Join,
    JoinRefused,
    LeaseSettings,
    Welcome,
)
from ....runtime.hosts.lease import HostLease, HostState, HostWatch
from ....runtime.messages import EngineMembership
from ....transports.links.link_keys import KEY_BYTES, LinkKeys
from ..kernel import SimKernel, SimProcess
from ..network import SimNetwork
from ..plan import Fault, FaultKind, Setup
from ..processes import ENGINE
from .link import ListedFrontends, SlowWay

LEASE = LeaseSettings()
# A host asks to be let in so often, and comes back so long after its end.
JOIN_S = 0.5
OFFER = Join(wire=HOST_WIRE, version="", name="", incarnation=0, engines=1, model_hash="")
# Of a reset, and of a connection that says nothing: the carrier's heartbeats end it.
RESET_S, HEARTBEATS_S = 0.03, 0.8
# Keys of engines, whose links are in memory here.
NO_KEYS = LinkKeys(bytes(KEY_BYTES), bytes(KEY_BYTES))


@attrs.define(eq=False)
class SimHost:
    """One machine, through all of its incarnations."""

    hosts: "SimHosts"
    name: str
    incarnation: int = attrs.field(default=0, init=False)
    # What is cut now: the way to the head, and the way from it; off: the machine itself.
    is_mute: bool = attrs.field(default=False, init=False)
    is_deaf: bool = attrs.field(default=False, init=False)
    off_until: float = attrs.field(default=-math.inf, init=False)
    # Of the present life.
    fleet: EngineFleet | None = attrs.field(default=None, init=False)
    epochs: range = attrs.field(default=range(0), init=False)
    _lease: HostLease | None = attrs.field(default=None, init=False)
    _listed: ListedFrontends = attrs.field(factory=ListedFrontends, init=False)
    _welcomes: list[Welcome] = attrs.field(factory=list, init=False)
    # When each Join was sent.
    _asked: list[float] = attrs.field(factory=list, init=False)
    _up: SlowWay | None = attrs.field(default=None, init=False)
    _down: SlowWay | None = attrs.field(default=None, init=False)
    _scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    _numbers: int = attrs.field(default=0, init=False)
    # What a cut has kept from the head: evidence is never lost while its host lives.
    _evidence: list[object] = attrs.field(factory=list, init=False)

    @property
    def id(self) -> HostId:
        return HostId(self.name, self.incarnation)

    @property
    def is_connected(self) -> bool:
        """Whether there is a present life."""
        return self._up is not None

    @property
    def clock(self) -> float:
        return 1e5 + trio.current_time() * self.hosts.setup.host_rate

    def engines(self) -> list[SimProcess]:
        """Its living engines, of the present life."""
        found = self.hosts.kernel.processes
        return [p for p in found if p.is_alive and p.role == "engine" and p.epoch in self.epochs]

    async def run(self) -> None:
        """One life after the other."""
        while True:
            await trio.sleep_until(max(self.off_until, trio.current_time()))
            self.incarnation += 1
            delay_s = self.hosts.setup.host_delay_s if self.incarnation == 1 else 0.0
            self._numbers, self._evidence = 0, []
            hear = partial(self.hosts.hear, self, self.id)
            up = self._up = SlowWay(lambda: self.is_mute, hear, delay_s)
            down = SlowWay(lambda: self.is_deaf, partial(self._hear, self.id), delay_s)
            self._down = down
            for way in (up, down):
                self.hosts.nursery.start_soon(way.run)
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                await self._live(nursery)
            self.fleet = self._up = self._down = self._scope = None
            up.close()  # what is under way comes all the same
            down.close()
            await trio.sleep(JOIN_S)

    async def _live(self, nursery: trio.Nursery) -> None:
        welcome = await self._join()
        self._lease = HostLease(welcome.lease, self._asked[welcome.attempt - 1])
        self.epochs = range(welcome.first_epoch, welcome.first_epoch + welcome.epochs)
        root = self.hosts.root
        parts = FleetParts(
            attrs.evolve(self.hosts.settings, engines=1, spare_engines=0),
            root.engines.parts.on_event,
            run_id=welcome.run_id,
            epochs=iter(self.epochs),
            kernel=self.hosts.kernel,
            chance=root.chance,
        )
        self.fleet = EngineFleet(
            parts=parts,
            frontends=self._listed,
            on_membership=self._tell,
            module=ENGINE,
            first_rank=welcome.first_rank,
            evidence=self,
        )
        nursery.start_soon(self.fleet.processes.run)
        await self._beat()

    async def _join(self) -> Welcome:
        self._welcomes, self._asked = [], []
        while not self._welcomes:
            self._asked.append(self.clock)
            offer = attrs.evolve(OFFER, name=self.name, incarnation=self.incarnation)
            self.send(attrs.evolve(offer, attempt=len(self._asked)))
            await trio.sleep(JOIN_S)
        return self._welcomes[0]

    async def _beat(self) -> None:
        lease, beat_s = self._lease, LEASE.beat_s
        assert lease is not None
        while not lease.is_over(self.clock):
            self.send(lease.handle_sent(self.clock))
            left_s = max(0.0, lease.ends_s - self.clock)
            await trio.sleep(min(beat_s, left_s) / self.hosts.setup.host_rate)
        self.hosts.note(f"{self.id} has no lease any more")
        self.end()
        await trio.sleep_forever()

    def end(self) -> None:
        """The machine, or its process, ends, and its engines with it."""
        for process in self.engines():
            self.hosts.kernel.kill(process)
        if self._scope is not None:
            self._scope.cancel("the host has ended")

    def send(self, message: object) -> None:
        if self._up is not None:
            self._up.send(message)

    def send_down(self, host: HostId, message: object) -> None:
        if self._down is not None and host == self.id:
            self._down.send(message)

    def _hear(self, host: HostId, message: object) -> None:
        if host != self.id:
            return
        match message:
            case Welcome():
                self._welcomes.append(message)
            case JoinRefused() if self.fleet is None:
                self.end()
            case HeadBeat() if self._lease is not None:
                self._lease.handle_beat(message, self.clock)
            case FrontendMembership() if message.number > self._listed.latest.number:
                self._listed.latest = message
                if self.fleet is not None:
                    self.fleet.processes.publish(message)

    def _tell(self, membership: EngineMembership) -> None:
        self._numbers += 1
        self.send(HostSnapshot(self._numbers, membership))

    def tell_again(self) -> None:
        """The link is there again: what a cut may have lost is told."""
        if self.fleet is not None:
            self._tell(self.fleet.directory.snapshot())
        for message in self._evidence if not self.is_mute else ():
            self.send(message)
        self._evidence = []

    def handle_death(self, positions: dict[bytes, int], epoch: int) -> None:
        """See `Evidence`."""
        self._give(HostDeath(positions, epoch))

    def handle_passed(self, positions: dict[bytes, int]) -> None:
        """See `Evidence`."""
        self._give(HostPassed(positions))

    def _give(self, message: object) -> None:
        if self.is_mute:
            self._evidence.append(message)
        self.send(message)


@attrs.define(eq=False)
class SimHosts:
    """All hosts of one simulation, and their head's end."""

    setup: Setup
    settings: RuntimeSettings
    root: Root
    kernel: SimKernel
    network: SimNetwork
    note: Callable[[str], None]
    fail: Callable[[str], None]
    reach: Callable[[str], None]
    nursery: trio.Nursery = attrs.field(init=False)
    directory: HostDirectory = attrs.field(init=False)
    hosts: list[SimHost] = attrs.field(init=False)
    _watches: dict[HostId, HostWatch] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.directory = HostDirectory("", "", self.root.engines.parts.epochs)
        self.hosts = [SimHost(self, f"host-{number}") for number in range(self.setup.hosts)]
        publish = self.root.frontends.on_membership

        def tell_all(membership: FrontendMembership) -> None:
            publish(membership)
            for host in self.hosts:
                host.send_down(host.id, membership)

        self.root.frontends.on_membership = tell_all

    def fleets(self) -> list[EngineFleet]:
        """Of hosts that have joined."""
        return [host.fleet for host in self.hosts if host.fleet is not None]

    async def run(self) -> None:
        """Background task: all of it."""
        async with trio.open_nursery() as self.nursery:
            for host in self.hosts:
                self.nursery.start_soon(host.run)

    def unsettled(self) -> str:
        """Which host is not there; "" if all are."""
        for host in self.hosts:
            watch = self._watches.get(host.id)
            if host.fleet is None or watch is None or watch.state is not HostState.UP:
                return f"{host.name} is not there"
        return ""

    # ---- the head's end

    def hear(self, host: SimHost, speaker: HostId, message: object) -> None:
        """A message of one life of a host came."""
        now, watch = trio.current_time(), self._watches.get(speaker)
        match message:
            case Join():
                self._let_in(host, speaker, message)
            case HostBeat() if watch is not None:
                self._note(host, speaker, watch.handle_beat(message, now))
            case HostSnapshot():
                try:
                    is_news = self.directory.handle_snapshot(speaker, message)
                except HostFault as error:
                    self.fail(str(error))
                else:
                    if is_news:
                        self._list(host.name)
            case HostDeath(positions=positions, epoch=epoch):
                self.root.engines.evidence.handle_death(positions, epoch)
            case HostPassed(positions=positions):
                self.root.engines.evidence.handle_passed(positions)

    def _let_in(self, host: SimHost, speaker: HostId, join: Join) -> None:
        local = set(self.root.engines.processes.places)
        found = self.directory.handle_join(join, trio.current_time(), local)
        self.directory.check_invariants()
        self.note(f"{speaker} asks: {found}")
        if isinstance(found, JoinRefused):
            host.send_down(speaker, found)
            return
        if found.replaced is not None:
            self._watches.pop(found.replaced, None)
        self._list(host.name)
        welcome = Welcome(
            run_id=self.root.run_id,
            first_rank=found.ranks.start,
            first_epoch=found.epochs.start,
            epochs=len(found.epochs),
            settings=b"",
            link_keys=NO_KEYS,
            lease=LEASE,
            attempt=join.attempt,
        )
        host.send_down(speaker, self.root.frontends.directory.snapshot())
        host.send_down(speaker, welcome)
        if (watch := self._watches.get(speaker)) is not None:
            self._note(host, speaker, watch.handle_join(trio.current_time()))
        else:
            self._watches[speaker] = HostWatch(LEASE, trio.current_time())
            self.nursery.start_soon(self._watch, host, speaker)

    async def _watch(self, host: SimHost, watched: HostId) -> None:
        beat_at = trio.current_time()
        while (watch := self._watches.get(watched)) is not None:
            now = trio.current_time()
            if beat_at <= now:
                host.send_down(watched, watch.next_beat(now))
                beat_at = now + LEASE.beat_s
            self._note(host, watched, watch.handle_timeout(now))
            await trio.sleep_until(min(beat_at, max(now, watch.next_deadline())))

    def _note(self, host: SimHost, watched: HostId, state: HostState | None) -> None:
        if state is None:
            return
        self.note(f"{watched} is {state.value}")
        self.reach(f"host {state.value}")
        if state is HostState.LOST:
            self._watches.pop(watched, None)
            if watched == host.id and host.engines():
                self.fail(f"{watched} computes, and is given up")
        if self.directory.handle_state(watched, state):
            self._list(host.name)
        listed = self.root.engines.directory.snapshot().engines
        if state is HostState.LOST and any(each.host == host.name for each in listed):
            self.fail(f"{watched} is lost, and its engines are listed")

    def _list(self, name: str) -> None:
        members, removed = self.directory.members(name), self.directory.removed(name)
        engines = self.root.engines
        engines.on_membership(engines.directory.handle_host(name, members, removed))

    # ---- faults

    async def run_fault(self, fault: Fault, ways: Sequence[int]) -> None:
        """Bring a fault to a host; `ways` are the ranks of the frontends."""
        host = self.hosts[fault.host % len(self.hosts)]
        watched, now = host.id, trio.current_time()
        if fault.kind is FaultKind.KILL_HOST:
            host.end()
            await trio.sleep(RESET_S)
            self._handle_down(host, watched)
        elif fault.kind is FaultKind.HOST_OFF:
            host.off_until = now + fault.for_s
            host.end()
            await trio.sleep(HEARTBEATS_S)
            self._handle_down(host, watched)
        else:
            await self._cut(host, fault, ways)

    async def _cut(self, host: SimHost, fault: Fault, frontends: Sequence[int]) -> None:
        if host.is_mute or host.is_deaf:
            return  # one cut at a time: its end is the end of the connection, too
        is_whole, watched = fault.kind is FaultKind.CUT_HOST, host.id
        host.is_mute |= is_whole or fault.kind is FaultKind.MUTE_HOST
        host.is_deaf |= is_whole or fault.kind is FaultKind.DEAFEN_HOST
        ranks = list(host.fleet.processes.places) if host.fleet is not None and is_whole else []
        cut = [(frontend, rank) for frontend in frontends for rank in ranks]
        for way in cut:
            self.network.cut(way)
        noticed_s = HEARTBEATS_S + 2 * self.setup.host_delay_s
        await trio.sleep(min(fault.for_s, noticed_s))
        if fault.for_s > noticed_s:
            self._handle_down(host, watched)
            await trio.sleep(fault.for_s - noticed_s)
        for way in cut:
            self.network.cuts.pop(way, None)
        self.heal_one(host)

    def heal_one(self, host: SimHost) -> None:
        """All ways are open; both ends tell each other anew what there is."""
        host.is_mute = host.is_deaf = False
        if host.is_connected and (watch := self._watches.get(host.id)) is not None:
            watch.handle_up()
        host.tell_again()
        host.send_down(host.id, self.root.frontends.directory.snapshot())

    def heal(self) -> None:
        """No fault is left."""
        for host in self.hosts:
            host.off_until = -math.inf
            self.heal_one(host)

    def _handle_down(self, host: SimHost, watched: HostId) -> None:
        if (watch := self._watches.get(watched)) is not None:
            self._note(host, watched, watch.handle_down(trio.current_time()))
