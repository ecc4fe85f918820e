"""Membership of one run: its engines and frontends, as numbered full snapshots.

Sans-IO: the fleets report what happened, and the root sends the snapshots that are returned.
Snapshots are whole and numbered, never increments, so that a lost or late one harms nothing: the
latest wins.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any

import attrs

from ...engine.control_messages import EngineReady, FrontendAddress, FrontendMembership
from ..control.calls import EngineState
from ..messages import EngineMember, EngineMembership, ForeignCall, ForeignOutcome, ForeignReply
from .quarantine import Suspect


@attrs.define(eq=False)
class EngineDirectory:
    """The engines of this run by rank. Every change makes a new snapshot with the next number."""

    _members: dict[int, EngineMember] = attrs.field(factory=dict, init=False)
    # {rank: its last epoch}
    _removed: dict[int, int] = attrs.field(factory=dict, init=False)
    _number: int = attrs.field(default=0, init=False)
    _suspects: dict[bytes, int] = attrs.field(factory=dict, init=False)
    _refused: dict[bytes, float] = attrs.field(factory=dict, init=False)
    _link_keys: dict[bytes, list[int]] = attrs.field(factory=dict, init=False)
    # {another machine: ranks that it may list}
    _reserved: dict[str, frozenset[int]] = attrs.field(factory=dict, init=False)

    def handle_starting(self, rank: int, epoch: int, restarts: int = 0) -> EngineMembership:
        """A new epoch is about to be spawned, after so many restarts of its place.

        Epochs of one rank only grow.
        """
        previous = self._members.get(rank)
        self._removed.pop(rank, None)
        if previous is None:
            self._members[rank] = EngineMember(rank=rank, epoch=epoch, state=EngineState.STARTING)
            return self._next()
        assert epoch > previous.epoch
        return self._change(rank, epoch=epoch, state=EngineState.RESTARTING, restarts=restarts)

    def handle_ready(self, rank: int, ready: EngineReady) -> EngineMembership:
        """The engine of this rank's current epoch can take work."""
        return self._change(rank, state=EngineState.READY, latest=ready)

    def handle_gone(self, rank: int, cause: str) -> EngineMembership:
        """The engine died, for `cause`; frontends end or move its streams."""
        return self._change(rank, state=EngineState.RESTARTING, cause=cause)

    def handle_failing(self, rank: int, cause: str) -> EngineMembership | None:
        """The engine will die, for `cause`; None if it does not take work anyway."""
        if self._members[rank].state is not EngineState.READY:
            return None
        return self.handle_gone(rank, cause)

    def handle_hung(self, rank: int, cause: str) -> EngineMembership:
        """A worker of the engine stood still, which will have another."""
        return self._change(rank, cause=cause)

    def handle_failed(self, rank: int, cause: str = "") -> EngineMembership:
        """The engine is given up; `cause` if that is not its last death. It may be revived."""
        cause = cause or self._members[rank].cause
        return self._change(rank, state=EngineState.FAILED, latest=None, cause=cause)

    def handle_removed(self, rank: int) -> EngineMembership:
        """The engine is no more, and no other comes in its place, unless one is added."""
        if (member := self._members.pop(rank, None)) is not None:
            self._removed[rank] = member.epoch
        return self._next()

    def handle_host(
        self, host: str, members: Iterable[EngineMember], removed: Mapping[int, int]
    ) -> EngineMembership:
        """Another machine lists its engines, all of them; none if it is gone."""
        listed = {member.rank: member for member in members}
        before = {rank: m.epoch for rank, m in self._members.items() if m.host == host}
        for rank in before:
            del self._members[rank]
        for rank, epoch in (before | dict(removed)).items():
            self._removed[rank] = max(epoch, self._removed.get(rank, 0))
        for rank, member in listed.items():
            assert member.host == host, "each machine lists its own"
            assert rank not in self._members, "a rank is on one machine"
            assert member.epoch >= before.get(rank, 0), "epochs of a rank only grow"
            if self._removed.get(rank, 0) <= member.epoch:
                self._removed.pop(rank, None)
            self._members[rank] = member
        return self._next()

    def handle_draining(self, *, emptying: bool) -> EngineMembership:
        """All engines here take nothing new from now on; `emptying`: they give what they have."""
        for rank, member in self._members.items():
            drains = attrs.evolve(member, draining=True, emptying=emptying)
            self._members[rank] = drains
        return self._next()

    def handle_quarantine(
        self, suspects: Mapping[bytes, Suspect], refused: Mapping[bytes, float]
    ) -> EngineMembership:
        """Requests are suspected or refused, or passed; that of a death may wait for the next."""
        self._suspects = {c: each.position for c, each in suspects.items() if each.position}
        self._refused = dict(refused)
        return self._next()

    def handle_link_keys(self, keys: Mapping[bytes, Set[int]]) -> None:
        """Note which keys engines of other machines come by; told with the next snapshot."""
        self._link_keys = {key: sorted(ranks) for key, ranks in keys.items()}

    def reserve(self, host: str, ranks: Collection[int]) -> None:
        """Note which ranks another machine may list from now on; none once it is gone."""
        self._reserved[host] = frozenset(ranks)
        if not ranks:
            del self._reserved[host]

    def ranks(self) -> Set[int]:
        """Ranks that are listed, or may be by another machine."""
        return self._members.keys() | frozenset().union(*self._reserved.values())

    def rank_of(self, epoch: int) -> int | None:
        """The rank whose present life this is; None if it is over."""
        return next((rank for rank, m in self._members.items() if m.epoch == epoch), None)

    def snapshot(self) -> EngineMembership:
        """Membership of all engines as they are now."""
        engines = [self._members[rank] for rank in sorted(self._members)]
        return EngineMembership(
            self._number,
            engines,
            self._suspects,
            self._refused,
            dict(self._removed),
            dict(self._link_keys),
        )

    def _change(self, rank: int, **changes: Any) -> EngineMembership:
        self._members[rank] = attrs.evolve(self._members[rank], **changes)
        return self._next()

    def _next(self) -> EngineMembership:
        self._number += 1
        return self.snapshot()


@attrs.define(eq=False)
class FrontendDirectory:
    """The frontends that engines serve, each in its *home*. One that is gone is unlisted at once.

    The number under which a process owns its home, its term, is its epoch, and epochs of all
    processes differ: so requests' attempts, which begin with it, are unique in a whole run.
    """

    _frontends: dict[int, FrontendAddress] = attrs.field(factory=dict, init=False)
    _number: int = attrs.field(default=0, init=False)
    # Homes whose frontend is gone and has a successor to come.
    _awaited: set[int] = attrs.field(factory=set, init=False)
    # {home: when its last frontend was gone, by CLOCK_MONOTONIC}
    _died_ns: dict[int, int] = attrs.field(factory=dict, init=False)

    def handle_ready(self, address: FrontendAddress) -> FrontendMembership:
        """A frontend has bound its sockets."""
        self._frontends[address.rank] = address
        self._awaited.discard(address.rank)
        return self._next()

    def handle_gone(self, home: int, now_ns: int) -> FrontendMembership:
        """The frontend of this home is gone; engines keep its requests for a successor."""
        self._died_ns[home] = now_ns
        if self._frontends.pop(home, None) is not None:
            self._awaited.add(home)
        return self._next()

    def handle_failed(self, home: int) -> FrontendMembership:
        """There is no successor; engines abort what its requests are."""
        self._frontends.pop(home, None)
        self._awaited.discard(home)
        return self._next()

    def handle_snapshot(self, membership: FrontendMembership) -> bool:
        """Whether it is news: at a host, whose head has the directory."""
        if membership.number <= self._number:
            return False
        self._frontends = {address.rank: address for address in membership.frontends}
        self._awaited, self._number = set(membership.awaited), membership.number
        return True

    def died_ns(self, home: int) -> int:
        """When the last frontend of this home was gone, by CLOCK_MONOTONIC; 0 if none was."""
        return self._died_ns.get(home, 0)

    def snapshot(self) -> FrontendMembership:
        """Membership of all frontends as they are now."""
        frontends = [self._frontends[home] for home in sorted(self._frontends)]
        return FrontendMembership(self._number, frontends, sorted(self._awaited))

    def _next(self) -> FrontendMembership:
        self._number += 1
        return self.snapshot()


def deliver(message: ForeignCall | ForeignReply, epochs: Mapping[int, int]) -> int | None:
    """The rank that the message is for; `epochs` are those of all frontends that are up, by rank.

    A call goes to the frontend that has the rank now, a successor too; None if there is none, which
    the caller hears of by `FrontendStates`. An answer goes to the very epoch that asked, whose call
    ids alone mean what it says; None if that is gone.
    """
    if isinstance(message, ForeignCall):
        return message.frontend if message.frontend in epochs else None
    is_awaited = epochs.get(message.caller) == message.caller_epoch
    return message.caller if is_awaited else None


def reply_to(call: ForeignCall, outcome: ForeignOutcome, text: str = "") -> ForeignReply:
    """The answer to a call, addressed to who made it."""
    return ForeignReply(
        caller=call.caller,
        caller_epoch=call.caller_epoch,
        call_id=call.call_id,
        outcome=outcome,
        text=text,
    )
