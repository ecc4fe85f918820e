"""Fair turns of principals at a thread: start-time fair queueing.

Sans-IO: plain counting; `tokenizer_threads` waits for what is decided here.

Each turn has a cost (characters). It is tagged with the virtual time at which its principal's turn
before it ends, or with the present one if that has passed; the lowest tag is served next, and the
present virtual time is its tag. So whoever waits has equal shares of the thread, by cost, however
many turns each asks for; one that comes anew waits for one turn of each other principal at most,
and nobody gathers credit by not coming. Equal tags are served in the order of asking.
"""

import heapq
from collections import Counter

import attrs

from ..errors import Overloaded

WAITING_LIMIT = "input.waiting_max"


@attrs.define(eq=False)
class FairTurn:
    """Wait of a principal. `begun` when it is served."""

    principal: str
    begun: bool = False
    has_left: bool = False


@attrs.define(eq=False)
class TurnQueue:
    """Serves `capacity` turns at a time; of one principal at most `waiting_max` wait."""

    capacity: int = attrs.field(validator=attrs.validators.ge(1))
    waiting_max: int = attrs.field(validator=attrs.validators.ge(1))
    _serving: int = attrs.field(default=0, init=False)
    # (tag, number of its asking, turn): those that wait; bounded by `waiting_max` and principals.
    # Those that have left meanwhile stay until they come up.
    _heap: list[tuple[float, int, FairTurn]] = attrs.field(factory=list, init=False)
    _asked: int = attrs.field(default=0, init=False)
    _waiting: Counter[str] = attrs.field(factory=Counter, init=False)
    _now: float = attrs.field(default=0.0, init=False)
    # The end of each principal's last turn; those that have passed are forgotten.
    _ends: dict[str, float] = attrs.field(factory=dict, init=False)

    def ask(self, principal: str, cost: float) -> FairTurn:
        """A turn that has begun, or that `leave` will return. Raises `Overloaded`."""
        turn = FairTurn(principal)
        if self._waiting[principal] >= self.waiting_max:
            raise Overloaded(limit=WAITING_LIMIT)
        tag = max(self._now, self._ends.get(principal, 0.0))
        self._ends[principal] = tag + cost
        self._asked += 1
        self._waiting[principal] += 1
        heapq.heappush(self._heap, (tag, self._asked, turn))
        self._serve()
        return turn

    def leave(self, turn: FairTurn) -> list[FairTurn]:
        """Leave a turn that is over or not wanted any more; returns those that begin now."""
        assert not turn.has_left
        turn.has_left = True
        if not turn.begun:
            self._stop_waiting(turn.principal)
            return []
        self._serving -= 1
        return self._serve()

    def _serve(self) -> list[FairTurn]:
        begun: list[FairTurn] = []
        while self._heap and self._serving < self.capacity:
            tag, _, turn = heapq.heappop(self._heap)
            if turn.has_left:
                continue
            self._now = tag
            self._stop_waiting(turn.principal)
            self._serving += 1
            turn.begun = True
            begun.append(turn)
        if not self._heap:
            self._ends = {name: end for name, end in self._ends.items() if end > self._now}
        return begun

    def _stop_waiting(self, principal: str) -> None:
        self._waiting[principal] -= 1
        if not self._waiting[principal]:
            del self._waiting[principal]

    def check_invariants(self) -> None:
        """Assert that no turn waits while one more could be served, and that counts are right."""
        waiting = Counter(turn.principal for _, _, turn in self._heap if not turn.has_left)
        assert waiting == self._waiting
        assert not waiting or self._serving == self.capacity
        assert 0 <= self._serving <= self.capacity
