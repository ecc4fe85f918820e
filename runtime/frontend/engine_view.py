"""Engines as one frontend sees them: membership, links, refusals, and which of them take work.

An engine takes work if the latest membership lists its epoch as ready, its link is up, it is not
silent, does not drain by it, and has not refused a request for draining since. It is gone once
membership says so: a link that is down proves nothing, nor does silence, after which it is as it
was before; but others may go on with what it has meanwhile.

Silence is noticed in two ways, and each is over by itself: the link says nothing for a while, or
membership says that nothing is heard of the engine's host. A frontend that has no link there yet
hears of it by the second alone; one whose own way is cut, by the first.

Sans-IO: snapshots and events of links in, sets of engines out. `core_client` carries out.
"""

import math
from collections.abc import Iterable

import attrs

from ...engine.batch_table import content_hash, form_hash
from ...engine.control_messages import EngineReady
from ...engine.messages import AddRequest
from ...transports.links.channel import Peer
from ..control.calls import EngineState
from ..errors import NoEngine, RequestQuarantined
from ..messages import EngineHealth, EngineMember, EngineMembership
from .replay_policy import Fail, ReplayDecision


@attrs.define(eq=False)
class EngineView:
    """Engines of one run, from one frontend."""

    membership: EngineMembership = attrs.field(factory=lambda: EngineMembership(-1, []), init=False)
    # The longest request, in tokens, that all engines take which are there or may come back, as far
    # as known: any may have to take over a stream, and its end must not depend on which does.
    max_model_len: float = attrs.field(default=math.inf, init=False)
    _linked: set[Peer] = attrs.field(factory=set, init=False)
    # Engines whose link has been up, whatever became of it, until they are forgotten.
    _met: set[Peer] = attrs.field(factory=set, init=False)
    _ready: dict[Peer, EngineReady] = attrs.field(factory=dict, init=False)
    _draining: set[Peer] = attrs.field(factory=set, init=False)
    # Engines that answer nothing on their link now, whether or not it is up.
    _silent_links: set[Peer] = attrs.field(factory=set, init=False)
    # Engines of hosts that are silent by the latest membership.
    _on_silent_hosts: set[Peer] = attrs.field(factory=set, init=False)
    # Engines that drain by it; of these, the ones that are to give away what they run.
    draining: set[Peer] = attrs.field(factory=set, init=False)
    _emptying: set[Peer] = attrs.field(factory=set, init=False)
    # The latest READY of each engine that was not given up, in whichever life.
    _latest: list[EngineReady] = attrs.field(factory=list, init=False)

    def handle_membership(self, membership: EngineMembership) -> dict[Peer, str] | None:
        """Numbered full snapshots, the latest wins; None for an older one.

        Returns the engines that are gone by it, and what became of each; `handle_forgotten` is
        called for them.
        """
        if membership.number <= self.membership.number:
            return None
        self.membership = membership
        ready = {
            Peer("engine", member.rank, member.epoch): member.ready
            for member in membership.engines
            if member.ready is not None
        }
        self._latest = [each.latest for each in membership.engines if each.latest is not None]
        lengths = [each.max_model_len for each in self._latest]
        self.max_model_len = min(lengths, default=math.inf)
        over = {peer for peer in self._met if self.is_over(peer)}
        gone = over | (self._ready.keys() - ready.keys())
        self._ready = ready
        self._draining.clear()
        # The news of a silence may be slower than that of an end.
        self._silent_links = {peer for peer in self._silent_links if not self.is_over(peer)}
        peers = {Peer("engine", each.rank, each.epoch): each for each in membership.engines}
        self._on_silent_hosts = {peer for peer, member in peers.items() if member.silent}
        self.draining = {peer for peer, member in peers.items() if member.draining}
        self._emptying = {peer for peer, member in peers.items() if member.emptying}
        return {peer: self._cause_of(peer) for peer in sorted(gone)}

    @property
    def silent(self) -> set[Peer]:
        """Engines that answer nothing now, by their link or by their host."""
        return self._silent_links | self._on_silent_hosts

    @property
    def emptied(self) -> set[Peer]:
        """Engines whose requests others go on with at once, if they do so exactly."""
        return self.silent | self._emptying

    def missing(self, peers: Iterable[Peer]) -> dict[Peer, str]:
        """Causes for those of these engines, which have been ready, that are gone."""
        return {peer: self._cause_of(peer) for peer in sorted(peers) if peer not in self._ready}

    def handle_up(self, peer: Peer) -> None:
        """A generation of its link began."""
        self._linked.add(peer)
        self._met.add(peer)

    def handle_down(self, peer: Peer) -> None:
        """Note that a link is down; it may come back."""
        self._linked.discard(peer)

    def handle_silent(self, peer: Peer) -> None:
        """Note that an engine answers nothing, until it is heard."""
        self._silent_links.add(peer)

    def handle_heard(self, peer: Peer) -> None:
        """Note that a silent engine speaks again; it is relied on if its host is not silent."""
        self._silent_links.discard(peer)

    def handle_draining(self, peer: Peer) -> None:
        """Note a refusal for draining: the engine is not asked again before the next membership."""
        self._draining.add(peer)

    def handle_forgotten(self, peer: Peer) -> None:
        """Note that an engine is gone, and its link with it."""
        self._linked.discard(peer)
        self._met.discard(peer)
        self._silent_links.discard(peer)

    def is_met(self, peer: Peer) -> bool:
        """Whether its link has been up and it was not forgotten since."""
        return peer in self._met

    def judge(self, request: AddRequest, now_s: float) -> None:
        """Have it run alone as far as it is suspected of an engine's death.

        Raises `RequestQuarantined`.
        """
        suspects, refused = self.membership.suspects, self.membership.refused
        if not (suspects or refused):
            return
        contents = content_hash(request), form_hash(request)
        left_s = max(refused.get(content, 0.0) for content in contents) - now_s
        if left_s > 0.0:
            raise RequestQuarantined(left_s)
        request.solo_tokens = max(suspects.get(content, 0) for content in contents)

    def judged(self, decision: ReplayDecision, now_s: float) -> ReplayDecision:
        """The decision, or that the request ends because it is refused by now."""
        try:
            self.judge(decision.entry.request, now_s)
        except RequestQuarantined as error:
            return Fail(decision.entry, error)
        return decision

    def is_over(self, peer: Peer) -> bool:
        """Whether this epoch of an engine will not be ready any more; it may never have been."""
        member = self._member_of(peer)
        if member is None:  # it was removed, or its link is faster than the snapshot of its time
            return self.membership.removed.get(peer.rank, 0) >= peer.epoch
        return member.epoch > peer.epoch or member.state is EngineState.FAILED

    def taking(self) -> dict[Peer, EngineReady]:
        """Engines that take work now, in order.

        By the channel's own objects: what an engine says is compared by identity first.
        """
        idle = self._draining | self.draining | self.silent
        takes = sorted(p for p in self._linked if p in self._ready and p not in idle)
        return {peer: self._ready[peer] for peer in takes}

    def expected(self) -> frozenset[str]:
        """Numerics ids of the engines that are there or may come back."""
        return frozenset(ready.numerics_id for ready in self._latest)

    def ranks(self) -> frozenset[int]:
        """Ranks whose engine is there or may come back."""
        members = self.membership.engines
        return frozenset(each.rank for each in members if each.state is not EngineState.FAILED)

    def no_engine(self, rank: int | None = None) -> NoEngine:
        """The error that says why none takes work, or not the one of this rank."""
        asked = [health for health in self.health() if rank in (None, health.rank)]
        reasons = [health.reason for health in asked if health.reason]
        return NoEngine("; ".join(reasons) or "no engine has started yet")

    def health(self) -> list[EngineHealth]:
        """Each engine's state as it is from here: ready also means that the link is up."""
        found, silent = [], self.silent
        for member in self.membership.engines:
            peer = Peer("engine", member.rank, member.epoch)
            state, reason = member.state, ""
            if state is EngineState.READY and peer in silent:
                state = EngineState.SILENT
            elif state is EngineState.READY and peer not in self._linked:
                state = EngineState.STARTING
            name = f"engine {member.rank}" + (f" of host {member.host}" if member.host else "")
            if peer in self._on_silent_hosts:
                reason = f"{name} is {state.value}: nothing is heard of its host"
            elif state is not EngineState.READY:
                reason = f"{name} is {state.value}"
                cause = member.cause.removeprefix("it ")
                reason += f" after it {cause}" if cause else ""
            elif peer in self._draining | self.draining:
                reason = f"{name} is draining"
            health = EngineHealth(member.rank, member.epoch, state, reason, member.cause)
            found.append(attrs.evolve(health, restarts=member.restarts, host=member.host))
        return found

    def _member_of(self, peer: Peer) -> EngineMember | None:
        return next((each for each in self.membership.engines if each.rank == peer.rank), None)

    def _cause_of(self, peer: Peer) -> str:
        member = self._member_of(peer)
        return "was removed" if member is None else member.cause or "was replaced"

    def check_invariants(self) -> None:
        """Sets nest as their names say."""
        assert self._linked <= self._met
        assert self.taking().keys() <= self._ready.keys()
        assert not self._draining & self.taking().keys()
