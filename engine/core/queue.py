"""Order of requests: the waiting queue, its policies, preemption victims, and shared prompts.

Sans-IO: plain lists. `scheduler` admits the first of those that wait, which none overtakes, and
preempts who is chosen here. Of several choices of one prompt one computes it, the others wait.

The waiting queue has two sides: *ready* requests could run if there were room; *parked* ones could
not even then (no credit, or they wait for a grammar or a sibling) and delay none. The policy is a
function from a request to a key. Those that have run before, here (preempted) or elsewhere
(replayed), come ahead of new ones, within their priority.

*Principals* take turns: of new requests of one priority the first of that principal is next which
was served least, in tokens. One that comes anew begins with as much as the one served last, so that
nobody gathers credit by not coming. With one principal it is the policy's order alone.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import attrs

from .kv_cache_manager import KVCacheManager
from .request import Home, Request

# The key decides who is first (smallest) and who is preempted first (largest). It is unique and
# must not change while the request is in the same list.
OrderKey = Callable[[Request], tuple[int, int, int]]
PromptKey = tuple[Home, str]
# Principals without anything ready that are looked through, to forget them, at a time.
FORGOTTEN_MIN = 64
# Ready requests that are looked through for short ones, in each step with a long one.
LOOKED_MAX = 256


def fcfs_order(request: Request) -> tuple[int, int, int]:
    """First admitted, first served; `arrival` decides only between equals."""
    return (0, request.admitted_ns, request.arrival)


def priority_order(request: Request) -> tuple[int, int, int]:
    """The lower number first; of equals, first admitted, first served."""
    return (request.priority, request.admitted_ns, request.arrival)


# By the words of `EngineSettings.scheduling_policy`.
ORDERS: dict[str, OrderKey] = {"priority": priority_order, "fcfs": fcfs_order}


def insert_ordered(
    requests: list[Request], request: Request, order: Callable[[Request], tuple[int, ...]]
) -> None:
    """Put a request into its place; at the end, the usual one, it costs one comparison."""
    if not requests or order(requests[-1]) < order(request):
        requests.append(request)
    else:
        bisect.insort(requests, request, key=order)


def remove_ordered(
    requests: list[Request], request: Request, order: Callable[[Request], tuple[int, ...]]
) -> None:
    """Take a request out of an ordered list that has it."""
    index = bisect.bisect_left(requests, order(request), key=order)
    assert requests[index] is request, request.request_id
    del requests[index]


@attrs.define(eq=False)
class WaitingQueue:
    """Bounded by what frontends admit (`runtime.frontend.admission`): the engine refuses none."""

    order: OrderKey = fcfs_order
    # Ordered; a shift of some thousand pointers is cheaper than a heap's bookkeeping for aborts.
    _ready: list[Request] = attrs.field(factory=list, init=False)
    _parked: set[Request] = attrs.field(factory=set, init=False)
    # {principal: its ready requests}.
    _principals: Counter[str] = attrs.field(factory=Counter, init=False)
    # {principal: tokens it was served}, and how many the last one had when it was admitted; of
    # those with nothing ready only such as have more than that.
    _served: dict[str, int] = attrs.field(factory=dict, init=False)
    _served_last: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._ready) + len(self._parked)

    def __contains__(self, request: Request) -> bool:
        return request in self._parked or request in self._ready

    def turn(self, request: Request) -> tuple[int, bool, int, int]:
        """The key of those that wait: of one priority, those that have run before come first."""
        priority, admitted_ns, arrival = self.order(request)
        return priority, not request.has_run, admitted_ns, arrival

    def add(self, request: Request) -> None:
        """Take a request in, to the side where it belongs now."""
        if request.is_schedulable:
            self._make_ready(request)
        else:
            self._parked.add(request)

    def update(self, request: Request) -> None:
        """Note new credit or status of a request: a parked one may have become ready.

        Ready ones become parked by `park` only: credit grows, and a grammar stays compiled.
        """
        if request.is_schedulable and request in self._parked:
            self._parked.remove(request)
            self._make_ready(request)

    def park(self, request: Request) -> None:
        """A ready request has to wait for something; `update` when it need not any more."""
        self._take_ready(request)
        self._parked.add(request)

    def remove(self, request: Request) -> None:
        """Take out a request that is here, on either side."""
        if request in self._parked:
            self._parked.remove(request)
        else:
            self._take_ready(request)

    def first(self) -> Request | None:
        """The ready request whose turn it is."""
        if not self._ready:
            return None
        if len(self._principals) == 1 or self._ready[0].has_run:
            return self._ready[0]
        return min(self._heads(), key=lambda head: self._served[head.principal])

    def shorts(self, tokens_max: int) -> list[Request]:
        """Ready requests of no more tokens, as far as is looked: of each principal the first, as
        their turns come; of the first one's priority.

        None of those that run alone, nor while the first does.
        """
        if not self._ready or self._ready[0].is_solo:
            return []
        found: dict[str, Request] = {}
        priority = self.order(self._ready[0])[0]
        for request in self._ready[:LOOKED_MAX]:
            is_short = request.total_tokens <= tokens_max and not request.is_solo
            if is_short and self.order(request)[0] == priority:
                found.setdefault(request.principal, request)
        return sorted(found.values(), key=self._short_turn)

    def _short_turn(self, request: Request) -> tuple[bool, int]:
        return not request.has_run, self._served[request.principal]

    def charge(self, request: Request, tokens: int) -> None:
        """Count so many tokens as served to the request's principal."""
        name = request.principal
        self._served[name] = self._served.get(name, self._served_last) + tokens

    def position(self, request: Request) -> int:
        """How many ready requests have their turn before this one, which waits.

        As if principals did not take turns.
        """
        return bisect.bisect_left(self._ready, self.turn(request), key=self.turn)

    def _heads(self) -> Iterator[Request]:
        """The first new request of each principal, of the first priority, in order."""
        seen: set[str] = set()
        priority = self.order(self._ready[0])[0]
        for request in self._ready:
            if len(seen) == len(self._principals) or self.order(request)[0] != priority:
                return
            if request.principal not in seen:
                seen.add(request.principal)
                yield request

    def _make_ready(self, request: Request) -> None:
        insert_ordered(self._ready, request, self.turn)
        name = request.principal
        self._principals[name] += 1
        if self._principals[name] == 1:
            self._served[name] = max(self._served.get(name, 0), self._served_last)

    def _take_ready(self, request: Request) -> None:
        remove_ordered(self._ready, request, self.turn)
        name = request.principal
        self._principals[name] -= 1
        if not self._principals[name]:
            del self._principals[name]

    def handle_admitted(self, request: Request) -> None:
        """The first one is taken out; its principal is charged what it has yet to compute."""
        self.remove(request)
        self._served_last = max(self._served_last, self._served[request.principal])
        self.charge(request, request.total_tokens)
        served, last = self._served, self._served_last
        if len(served) > 2 * len(self._principals) + FORGOTTEN_MIN:
            kept = {name: n for name, n in served.items() if n > last or name in self._principals}
            self._served = kept

    def requests(self) -> list[Request]:
        """Waiting requests: the ready ones in order, then the parked ones in order."""
        return self._ready + sorted(self._parked, key=self.turn)

    def check_invariants(self) -> None:
        """Fails an assertion if an order or a side is wrong."""
        keys = [self.turn(request) for request in self._ready]
        assert keys == sorted(set(keys))
        assert self._principals == Counter(request.principal for request in self._ready)
        assert self._principals.keys() <= self._served.keys()
        for request in self._ready:
            assert request.is_schedulable, request.request_id
            assert request not in self._parked
        for request in self._parked:
            assert not request.is_schedulable, request.request_id
        for request in self.requests():
            assert not request.is_finished
            request.check_invariants()


def paused_count(running: Sequence[Request]) -> int:
    """Count of running requests that are at their credit."""
    stopped = [each for each in running if each.total_tokens >= each.tokens_max]
    return sum(not request.has_credit for request in stopped)


def next_victim(running: Sequence[Request], runnable: list[Request]) -> Request:
    """Choose whom to preempt: the last paused request, else the last of `runnable`.

    Both are in order. The latter is taken off `runnable`; it has not been served yet in this step,
    and alone may be in flight: what a paused one's credit allowed has all been applied.
    """
    for request in reversed(running):
        if not request.has_credit:
            return request
    return runnable.pop()


def victims_for_admission(
    running: Sequence[Request],
    kv_cache: KVCacheManager,
    hit: list[int],
    *,
    blocks: int,
    places: int,
) -> list[Request] | None:
    """The paused requests to preempt for a waiting one: at least `places`, and `blocks` with them.

    No more of them than needed, the last first; None if all of them are not enough. Blocks of its
    `hit` do not become free by being released.
    """
    victims: list[Request] = []
    if blocks <= 0 and places <= 0:
        return victims
    paused = [request for request in reversed(running) if not request.has_credit]
    # Asked in every step while a request waits, so the plain cases are not counted by blocks.
    if len(paused) < places or sum(len(request.block_ids) for request in paused) < blocks:
        return None
    released, kept = Counter[int](), frozenset(hit)
    for request in paused:
        victims.append(request)
        blocks -= kv_cache.blocks_freed_by(request, released, kept)
        if len(victims) >= places and blocks <= 0:
            return victims
    return None


@attrs.define(eq=False)
class _SharedPrompt:
    """`computing` computes the prompt; `waiting` are its siblings."""

    computing: Request
    waiting: list[Request] = attrs.field(factory=list)


@attrs.define(eq=False)
class SharedPrompts:
    """Prompts of several choices that are being computed; bounded by the requests that run.

    Choices of one request come at once; if each began at once each would compute the prompt. So the
    first that is admitted computes it, and its siblings wait until its blocks can be found
    (`KVCacheManager`), or until it was preempted or has ended: then the next one to be admitted is
    the one that computes. None waits for a request that does not itself run, so nothing can wait
    for ever.
    """

    _prompts: dict[PromptKey, _SharedPrompt] = attrs.field(factory=dict, init=False)

    def wait_for_sibling(self, request: Request) -> bool:
        """Whether a sibling computes the prompt; the request then waits for it from now on."""
        prompt = self._prompts.get(_key(request))
        if prompt is None:
            return False
        prompt.waiting.append(request)
        request.waits_for_sibling = True
        return True

    def begin(self, request: Request) -> None:
        """Begin to share the prompt of a request that was admitted; no sibling computes it yet."""
        key = _key(request)
        assert key not in self._prompts
        self._prompts[key] = _SharedPrompt(request)

    def leave(self, request: Request) -> list[Request]:
        """Remove a request that needs its prompt no more; returns the siblings that need not wait
        now."""
        prompt = self._prompts.get(_key(request))
        if prompt is None:
            return []
        if prompt.computing is not request:
            if request.waits_for_sibling:
                prompt.waiting.remove(request)
                request.waits_for_sibling = False
            return []
        del self._prompts[_key(request)]
        for sibling in prompt.waiting:
            sibling.waits_for_sibling = False
        return prompt.waiting

    def check_invariants(self, running: list[Request]) -> None:
        """Fails an assertion if one waits for a request that is not in `running`, or in vain."""
        for key, prompt in self._prompts.items():
            assert prompt.computing in running
            assert not prompt.computing.is_finished
            for request in prompt.waiting:
                assert request.waits_for_sibling
                assert _key(request) == key
                assert not request.is_finished
                assert request not in running


def shares_prompt(request: Request, hit: list[int], kv_cache: KVCacheManager) -> bool:
    """Whether its siblings want what it has yet to compute of its prompt."""
    if not (request.parent and request.takes_hits):
        return False
    return len(hit) < kv_cache.shareable_blocks(request)


def _key(request: Request) -> PromptKey:
    return (request.home, request.parent)
