"""Lives of the hosts that a cluster places: which life of each is wanted, and when the next begins.

Sans-IO: what the cluster says of a placement, and which hosts the head hears, in; decisions out.
A cluster's word may begin another life of a host, but never ends one that the head hears: a node
that Ray calls dead may serve on behind a link that it lost. So a placement is over when its host
has said so, or when it is called dead and is not heard; and when neither the head hears it nor the
cluster reaches it, or the head alone for longer than a host that was cut off takes to join again.
"""

import itertools
import math
from collections.abc import Iterator, Set

import attrs

from ...nurseries.tasks.supervision_policy import Death, Escalate, SupervisionPolicy

# A host that was cut off ends its engines, dials again for three seconds, and ends.
ABSENT_S = 8.0
# Where the cluster does not reach it either: the node is gone, or nearly so.
OUT_OF_REACH_S = 1.0


@attrs.frozen
class Begin:
    """Have this life of a host placed, with a ticket of its own."""

    name: str
    life: int


@attrs.frozen
class LifeOver:
    """The present life of a host is over, for this cause: its ticket is withdrawn."""

    name: str
    cause: str


@attrs.frozen
class HostGivenUp:
    """No life of this host will do: none ever joined."""

    name: str
    cause: str


Decision = Begin | LifeOver | HostGivenUp


@attrs.define
class PlacedHost:
    """Host that is wanted. `life` 0: none has begun; `due_s`: the next one does then.

    `is_placed` from the begin of a life to its end; `heard_s` is when it was heard last.
    """

    name: str
    life: int = 0
    due_s: float = -math.inf
    is_placed: bool = False
    heard_s: float | None = None
    # Why the cluster says that its placement is over, and whether that is known for certain.
    cause: str = ""
    is_certain: bool = False
    is_out_of_reach: bool = False
    is_given_up: bool = False


@attrs.define(eq=False)
class HostLives:
    """Hosts that one launcher has placed, by name. `numbers` are those of lives; they only grow."""

    policy: SupervisionPolicy
    prefix: str
    hosts: dict[str, PlacedHost] = attrs.field(factory=dict, init=False)
    numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))

    def handle_wanted(self, count: int) -> list[Decision]:
        """So many hosts are wanted; the highest leave first."""
        names = [f"{self.prefix}-{number}" for number in range(count)]
        gone = [host for host in self.hosts.values() if host.name not in names]
        self.hosts = {name: self.hosts.get(name, PlacedHost(name)) for name in names}
        return [LifeOver(host.name, "is not wanted any more") for host in gone if host.is_placed]

    def handle_ended(self, name: str, life: int, cause: str, *, is_certain: bool) -> None:
        """The cluster says that this placement is over."""
        host = self.hosts.get(name)
        if host is not None and host.is_placed and host.life == life:
            host.cause, host.is_certain = cause, is_certain

    def handle_reach(self, name: str, *, is_out_of_reach: bool) -> None:
        """The cluster does not reach the placement of this host now, or does again."""
        if (host := self.hosts.get(name)) is not None:
            host.is_out_of_reach = is_out_of_reach

    def handle_look(self, heard: Set[str], now: float) -> list[Decision]:
        """The head hears these hosts now."""
        decisions: list[Decision] = []
        for host in self.hosts.values():
            if host.is_placed:
                decisions += self._look(host, host.name in heard, now)
            if not host.is_placed and not host.is_given_up and now >= host.due_s:
                host.life, host.is_placed = next(self.numbers), True
                host.heard_s, host.cause, host.is_certain = None, "", False
                host.is_out_of_reach = False
                self.policy.handle_starting(host.name, host.life)
                decisions.append(Begin(host.name, host.life))
        return decisions

    def _look(self, host: PlacedHost, is_heard: bool, now: float) -> list[Decision]:
        if is_heard and not host.is_certain:
            if host.heard_s is None:
                self.policy.handle_ready(host.name, now)
            host.heard_s = now
            return []
        patience_s = OUT_OF_REACH_S if host.is_out_of_reach else ABSENT_S
        is_absent = host.heard_s is not None and now - host.heard_s > patience_s
        if not host.cause and not is_absent:
            return []
        cause = host.cause or f"is not heard for {patience_s:g} s"
        host.is_placed = False
        death = Death.FAULT if host.is_certain else Death.KILLED
        decision = self.policy.handle_exit(host.name, now, death)
        if isinstance(decision, Escalate):
            host.is_given_up = True
            return [LifeOver(host.name, cause), HostGivenUp(host.name, cause)]
        host.due_s = decision.at
        return [LifeOver(host.name, cause)]

    def present(self) -> dict[str, int]:
        """{name: life} of what is to be placed now."""
        return {host.name: host.life for host in self.hosts.values() if host.is_placed}

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        lives = [host.life for host in self.hosts.values() if host.life]
        assert len(lives) == len(set(lives)), "no two have one number"
        assert not any(host.is_placed and host.is_given_up for host in self.hosts.values())
