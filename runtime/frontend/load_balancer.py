"""Load balancer: the least loaded engine of those that take work, for each new request.

Two sources of truth disagree for a while: an engine's own counts, which are exact but late, and
what this frontend has in flight there, which is present but not the whole. The load of an engine is
the larger one: in flight here times the number of frontends, or the snapshot's requests and what
was sent and has ended since, the others being taken to do as this one does. In-flight counts are
the ledger's, passed in at each choice, so that there is no counter to drift when a send fails.
Waiting requests weigh more once more than half of the KV blocks are taken (vLLM's formula).

A choice costs the same however many engines there are: up to `COMPARED_MAX` all are compared, of
more so many that are drawn at random. Two would do to keep the longest queue short (the power of
two choices); eight leave the queues of 256 engines within one or two requests of each other.

Sans-IO: plain computation.
"""

import random
from collections.abc import Callable, Collection, Iterable

import attrs

from ...engine.messages import EngineStatistics
from ...transports.links.channel import Peer
from ..errors import NoEngine

# A waiting request on a full engine weighs as four running ones: 1 + 6 × (1 − 0.5). vLLM's numbers.
WAITING_WEIGHT = 6.0
KV_USAGE_FREE_OF_CHARGE = 0.5
# Each costs about 0.7 µs.
COMPARED_MAX = 8


@attrs.define(eq=False)
class _Candidate:
    peer: Peer
    statistics: EngineStatistics | None = None
    # Weight of a waiting request of that snapshot beyond itself.
    pressure: float = 0.0
    # Requests of this frontend in flight that the snapshot counts; others were sent later.
    counted: int = 0


@attrs.define(eq=False)
class LeastLoaded:
    """The balancer of one frontend; `frontends` share the engines, this is number `rank`."""

    frontends: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    rank: int = 0
    chance: random.Random = attrs.field(factory=random.Random)

    _candidates: dict[Peer, _Candidate] = attrs.field(factory=dict, init=False)
    # The same, to be drawn from.
    _drawn_from: list[_Candidate] = attrs.field(factory=list, init=False)
    # Beginning of a scan of all: one further each time, so that equals take turns.
    _start: int | None = attrs.field(default=None, init=False)

    @property
    def engines(self) -> list[Peer]:
        """Engines that take work now."""
        return list(self._candidates)

    def set_engines(self, peers: Iterable[Peer]) -> None:
        """The engines that take work from now on; counts of others are dropped."""
        known = self._candidates
        self._candidates = {peer: known.get(peer) or _Candidate(peer) for peer in peers}
        self._drawn_from = list(self._candidates.values())

    def handle_statistics(self, peer: Peer, statistics: EngineStatistics, counted: int = 0) -> None:
        """A snapshot, and how many in flight it counts; ignored if the engine takes no work."""
        candidate = self._candidates.get(peer)
        if candidate is None:
            return
        candidate.statistics, candidate.counted = statistics, counted
        candidate.pressure = WAITING_WEIGHT * max(
            0.0, statistics.kv_usage - KV_USAGE_FREE_OF_CHARGE
        )

    def choose(
        self, in_flight: Callable[[Peer], int], among: Collection[Peer] | None = None
    ) -> Peer:
        """The engine for the next request. Raises `NoEngine` if none takes work.

        `among` are those that may be chosen, all of them engines that take work; all without.
        """
        if among is not None:
            compared = [self._candidates[peer] for peer in among]
        else:
            compared = self._compared() if self._drawn_from else []
        if not compared:
            raise NoEngine("no engine takes work now")
        if len(compared) == 1:
            return compared[0].peer
        return min(compared, key=lambda candidate: self._load(candidate, in_flight)).peer

    def _compared(self) -> list[_Candidate]:
        candidates = self._drawn_from
        count = len(candidates)
        if count > COMPARED_MAX:
            draw = self.chance.random
            return [candidates[int(draw() * count)] for _ in range(COMPARED_MAX)]
        if self._start is None:
            # Frontends begin at different engines.
            self._start = count * self.rank // self.frontends
        start = self._start % count
        self._start += 1
        return candidates[start:] + candidates[:start]

    def _load(self, candidate: _Candidate, in_flight: Callable[[Peer], int]) -> float:
        ours = in_flight(candidate.peer)
        floor = self.frontends * ours
        snapshot = candidate.statistics
        if snapshot is None:
            return floor
        waiting = snapshot.waiting + self.frontends * (ours - candidate.counted)
        return max(floor, waiting + snapshot.running) + max(0, waiting) * candidate.pressure

    def check_invariants(self) -> None:
        """Both indexes agree."""
        assert [candidate.peer for candidate in self._drawn_from] == self.engines
