"""Directory of hosts: who has joined, with which ranks and epochs, and what is listed of them.

Sans-IO: requests to join, snapshots and states in; admissions, members and keys out. The head's
shell sends what is returned, and gives `members` and `removed` to `EngineDirectory.handle_host`.

Each host has a block of ranks, the lowest that are free in a row, as long as it is here, and blocks
of epochs that no other host or process of the run ever has: so a rank that is given again comes
with a higher epoch than before, and whoever still speaks for it is fenced. A host is known by name
and incarnation; one that was lost, or left, may come again only as another incarnation.
"""

import itertools
import re
from collections.abc import Iterator, Sequence, Set
from typing import Any

import attrs

from ...engine.messages import ENGINE_WIRE
from ..config import PROCESSES_MAX
from ..control.calls import EngineState
from ..messages import EngineMember
from .host_messages import HOST_WIRE, HostSnapshot, Join, JoinRefused
from .lease import HostState

# Lives of engines that a host may begin before it asks for more.
EPOCHS_OF_BLOCK = 256
# Incarnations that may not come back and are remembered: their links are fenced for ever.
LOST_MAX = 1024
# Names are in labels, places and lines of logs.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@attrs.frozen
class HostFault(Exception):
    """A host says what it may not, by its own fault: it is given up. Nothing was changed."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@attrs.frozen(order=True)
class HostId:
    """One incarnation of a host."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"host {self.name}"


@attrs.frozen(kw_only=True)
class HostAdmission:
    """Facts of a `Welcome`. `differs`: a sentence if the package's version is another one.

    `replaced` is an incarnation before it that was silent and is given up for it. `wire` is the
    version that both ends speak.
    """

    host: HostId
    ranks: range
    epochs: range
    wire: int = HOST_WIRE
    differs: str = ""
    replaced: HostId | None = None


@attrs.frozen(kw_only=True)
class KnownHost:
    """Host that has joined and is not lost. `epochs` are all of its blocks."""

    admission: HostAdmission
    joined_at: float
    state: HostState = HostState.UP
    epochs: tuple[range, ...]
    # Number of the latest snapshot, what it lists, and {rank: last epoch} of what it had.
    number: int = 0
    members: tuple[EngineMember, ...] = ()
    removed: dict[int, int] = attrs.field(factory=dict)
    # Public key by which frontends know its engines.
    key: bytes = b""

    def has_epoch(self, epoch: int) -> bool:
        """Whether this epoch was given to the host."""
        return any(epoch in block for block in self.epochs)


@attrs.define(eq=False)
class HostDirectory:
    """The hosts of one run. `epochs` is the iterator of the run, which only grows, by one."""

    model_hash: str
    version: str
    epochs: Iterator[int]
    # Version of the messages that this head speaks.
    wire: int = HOST_WIRE
    # By name: there is one incarnation of each.
    hosts: dict[str, KnownHost] = attrs.field(factory=dict, init=False)
    # Incarnations that are over, the oldest first.
    _lost: dict[HostId, None] = attrs.field(factory=dict, init=False)

    def handle_join(self, join: Join, now: float, taken: Set[int]) -> HostAdmission | JoinRefused:
        """A host asks to be let in, where these ranks are taken by engines of the head's own.

        One that is in, and asks again, is answered as before.
        """
        host = HostId(join.name, join.incarnation)
        if reason := self._reason_against(join):
            return JoinRefused(reason, wire=self.wire)
        present = self.hosts.get(join.name)
        if reason := self._reason_to_wait(host, present):
            return JoinRefused(reason, may_retry=True, wire=self.wire)
        if present is not None and present.admission.host == host:
            return present.admission
        replaced = None if present is None else present.admission.host
        if replaced is not None:
            self.handle_lost(replaced)
        differs = f"{host} has version {join.version}, the head {self.version}"
        admission = HostAdmission(
            host=host,
            ranks=self._free_ranks(join.engines, taken),
            epochs=self._block_of_epochs(),
            wire=min(join.wire, self.wire),
            differs="" if join.version == self.version else differs,
            replaced=replaced,
        )
        self.hosts[join.name] = KnownHost(
            admission=admission, joined_at=now, epochs=(admission.epochs,)
        )
        return admission

    def _reason_against(self, join: Join) -> str:
        """The one fact that keeps a host out, as a sentence; empty if there is none.

        Versions of its messages do, where they are not neighbours; that of the package does not.
        """
        if not self.wire - 1 <= join.wire <= self.wire:
            return f"its messages are of version {join.wire}, the head's of {self.wire}"
        if abs(join.engine_wire - ENGINE_WIRE) > 1:
            own = f"the head's frontends' of {ENGINE_WIRE}"
            return f"its engines' messages are of version {join.engine_wire}, {own}"
        if NAME.fullmatch(join.name) is None:
            return "its name is not made of 1 to 64 letters, digits, dots, dashes and underscores"
        if not 1 <= join.engines <= PROCESSES_MAX:
            return f"it has {join.engines} engines, not 1 to {PROCESSES_MAX}"
        if join.model_hash != self.model_hash:
            return f"its model's files are {join.model_hash}, the head's {self.model_hash}"
        return ""

    def _reason_to_wait(self, host: HostId, present: KnownHost | None) -> str:
        """What keeps this incarnation out, or keeps it out for now; empty if there is nothing."""
        if host in self._lost:
            return f"incarnation {host.incarnation} of {host} was given up, and may not come back"
        if present is None or present.admission.host == host or present.state is HostState.SILENT:
            return ""
        return f"{host} is here already, as incarnation {present.admission.host.incarnation}"

    def _free_ranks(self, count: int, taken: Set[int]) -> range:
        held = {rank for known in self.hosts.values() for rank in known.admission.ranks} | taken
        first = 0
        while found := [rank for rank in range(first, first + count) if rank in held]:
            first = found[-1] + 1
        return range(first, first + count)

    def _block_of_epochs(self) -> range:
        block = [next(self.epochs) for _ in range(EPOCHS_OF_BLOCK)]
        assert block[-1] - block[0] == EPOCHS_OF_BLOCK - 1, "the run's epochs grow by one"
        return range(block[0], block[-1] + 1)

    def handle_epochs_wanted(self, host: HostId) -> range | None:
        """Return another block of epochs; None if the host is not here any more."""
        known = self._known(host)
        if known is None:
            return None
        block = self._block_of_epochs()
        self._change(known, epochs=(*known.epochs, block))
        return block

    def handle_key(self, host: HostId, key: bytes) -> None:
        """Note the public key of the pair that the engines of this host are given."""
        if (known := self._known(host)) is not None:
            self._change(known, key=key)

    def handle_snapshot(self, host: HostId, snapshot: HostSnapshot) -> bool:
        """Whether it is news. Raises `HostFault` if it lists what was not given to the host."""
        known = self._known(host)
        if known is None or snapshot.number <= known.number:
            return False
        listed = [(each.rank, each.epoch) for each in snapshot.membership.engines]
        if len({rank for rank, _ in listed}) < len(listed):
            raise HostFault(f"{host} lists a rank twice")
        for rank, epoch in (*listed, *snapshot.membership.removed.items()):
            if rank not in known.admission.ranks:
                raise HostFault(f"{host} lists engine {rank}, which is not one of its own")
            if not known.has_epoch(epoch):
                raise HostFault(f"{host} lists epoch {epoch}, which it was not given")
        self._change(
            known,
            number=snapshot.number,
            members=tuple(snapshot.membership.engines),
            removed=dict(snapshot.membership.removed),
        )
        return True

    def handle_state(self, host: HostId, state: HostState) -> bool:
        """Note what the watch found; whether anything of the host is listed otherwise now."""
        known = self._known(host)
        if known is None or known.state is state:
            return False
        if state is HostState.LOST:
            self.handle_lost(host)
        else:
            self._change(known, state=state)
        return True

    def handle_lost(self, host: HostId) -> None:
        """The host is lost, or left: nothing of it is listed, and this incarnation never again."""
        self._lost[host] = None
        for oldest in list(self._lost)[: max(0, len(self._lost) - LOST_MAX)]:
            del self._lost[oldest]
        if self._known(host) is not None:
            del self.hosts[host.name]

    def members(self, name: str) -> Sequence[EngineMember]:
        """The engines of this host as membership lists them; those of a silent one are silent."""
        known = self.hosts.get(name)
        if known is None:
            return []
        is_silent = known.state is HostState.SILENT
        return [
            attrs.evolve(member, host=name, silent=is_silent and member.state is EngineState.READY)
            for member in known.members
        ]

    def removed(self, name: str) -> dict[int, int]:
        """{rank: last epoch} of engines that this host has no more."""
        known = self.hosts.get(name)
        return {} if known is None else known.removed

    def link_keys(self) -> dict[bytes, frozenset[int]]:
        """{public key: the ranks for which its holder may speak} of all hosts."""
        known = [each for each in self.hosts.values() if each.key]
        return {each.key: frozenset(each.admission.ranks) for each in known}

    def _known(self, host: HostId) -> KnownHost | None:
        known = self.hosts.get(host.name)
        return known if known is not None and known.admission.host == host else None

    def _change(self, known: KnownHost, **changes: Any) -> None:
        self.hosts[known.admission.host.name] = attrs.evolve(known, **changes)

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        known = list(self.hosts.values())
        ranks = [rank for each in known for rank in each.admission.ranks]
        assert len(ranks) == len(set(ranks)), "a rank is one host's"
        starts = sorted((block.start, block.stop) for each in known for block in each.epochs)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(starts))
        assert not self._lost.keys() & {each.admission.host for each in known}
        for each in known:
            assert all(m.rank in each.admission.ranks for m in each.members)
            assert all(each.has_epoch(m.epoch) for m in each.members)
