"""Chooses the engine of a new request: the least loaded of those that take work.

Two sources of truth disagree for a while: an engine's own counts, which are exact but late, and
what this frontend has in flight there, which is present but not the whole. The load of an engine is
the larger one: in flight here times the number of frontends, or the snapshot's requests plus what
was sent since. In-flight counts are the ledger's, passed in at each choice, so that no counter of
its own can drift when a send fails. Waiting requests weigh more once more than half of the KV
blocks are taken (vLLM's formula). The scan starts one further each time, so that equals take turns.

Sans-IO: plain computation. Must not know requests, links or processes.
"""

from collections.abc import Callable, Iterable

import attrs

from ...engine.messages import EngineStatistics
from ...transports.links.channel import Peer
from ..errors import NoEngine

# A waiting request on a full engine weighs as four running ones: 1 + 6 × (1 − 0.5). vLLM's numbers.
WAITING_WEIGHT = 6.0
KV_USAGE_FREE_OF_CHARGE = 0.5


@attrs.define(eq=False)
class _Candidate:
    peer: Peer
    statistics: EngineStatistics | None = None
    # Requests of this frontend sent since that snapshot.
    sent_since: int = 0


@attrs.define(eq=False)
class LeastLoaded:
    """The balancer of one frontend; `frontends` share the engines, this is number `rank`."""

    frontends: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    rank: int = 0

    _candidates: list[_Candidate] = attrs.field(factory=list, init=False)
    _start: int | None = attrs.field(default=None, init=False)

    @property
    def engines(self) -> list[Peer]:
        """Those that take work now."""
        return [candidate.peer for candidate in self._candidates]

    def set_engines(self, peers: Iterable[Peer]) -> None:
        """The engines that take work from now on; counts of others are dropped."""
        known = {candidate.peer: candidate for candidate in self._candidates}
        self._candidates = [known.get(peer) or _Candidate(peer) for peer in peers]

    def handle_statistics(self, peer: Peer, statistics: EngineStatistics) -> None:
        """A snapshot of an engine; ignored if it is the last one, or the engine takes no work."""
        for candidate in self._candidates:
            if candidate.peer == peer and candidate.statistics is not statistics:
                candidate.statistics, candidate.sent_since = statistics, 0

    def choose(
        self, in_flight: Callable[[Peer], int], *, exclude: frozenset[Peer] = frozenset()
    ) -> Peer:
        """The engine for one more request, which counts as sent from now on.

        Raises `NoEngine` if none takes work.
        """
        eligible = self._candidates
        if exclude:
            eligible = [each for each in eligible if each.peer not in exclude]
        if not eligible:
            raise NoEngine("no engine takes work now")
        chosen = eligible[0]
        if len(eligible) > 1:
            turned = self._turned(eligible)
            chosen = min(turned, key=lambda candidate: self._load(candidate, in_flight))
        chosen.sent_since += 1
        return chosen.peer

    def _turned(self, candidates: list[_Candidate]) -> list[_Candidate]:
        """The same, from another one on each time."""
        count = len(candidates)
        if self._start is None:
            # Frontends begin at different engines.
            self._start = count * self.rank // self.frontends
        start = self._start % count
        self._start += 1
        return candidates[start:] + candidates[:start]

    def _load(self, candidate: _Candidate, in_flight: Callable[[Peer], int]) -> float:
        ours = self.frontends * in_flight(candidate.peer)
        snapshot = candidate.statistics
        if snapshot is None:
            return ours
        waiting = snapshot.waiting + self.frontends * candidate.sent_since
        used = 0.0
        if snapshot.kv_blocks:
            used = 1 - snapshot.kv_blocks_free / snapshot.kv_blocks
        pressure = WAITING_WEIGHT * max(0.0, used - KV_USAGE_FREE_OF_CHARGE)
        return max(ours, waiting + snapshot.running) + waiting * pressure

    def check_invariants(self) -> None:
        """Each engine is there once."""
        assert len(set(self.engines)) == len(self.engines)
