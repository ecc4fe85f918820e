"""Who is chosen: the least loaded by the larger of two counts, equals in turn, each its share."""

import heapq
import itertools
import random
from collections import Counter

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.messages import EngineStatistics
from triolet.runtime.errors import NoEngine
from triolet.runtime.frontend.load_balancer import LeastLoaded
from triolet.transports.links.channel import Peer

ENGINES = [Peer("engine", rank, 1) for rank in range(3)]


def make(frontends: int = 1, rank: int = 0, engines: int = 3) -> LeastLoaded:
    balancer = LeastLoaded(frontends, rank)
    balancer.set_engines(ENGINES[:engines])
    return balancer


def test_without_engines_there_is_a_typed_error() -> None:
    with pytest.raises(NoEngine):
        LeastLoaded().choose(lambda _: 0)


def test_of_named_engines_the_least_loaded_is_chosen_and_of_none_it_is_an_error() -> None:
    balancer, load = make(), {p: [0, 5, 3][p.rank] for p in ENGINES}.__getitem__
    assert balancer.choose(load, ENGINES[1:]).rank == 2
    assert [balancer.choose(load, ENGINES[1:2]).rank for _ in range(3)] == [1, 1, 1]
    with pytest.raises(NoEngine):
        balancer.choose(load, [])


def test_equals_take_turns_and_frontends_begin_apart() -> None:
    balancer = make()
    assert [balancer.choose(lambda _: 0).rank for _ in range(4)] == [0, 1, 2, 0]
    assert [make(3, rank).choose(lambda _: 0).rank for rank in range(3)] == [0, 1, 2]


def test_own_requests_in_flight_are_the_floor() -> None:
    balancer = make()
    for peer in ENGINES:
        balancer.handle_statistics(peer, EngineStatistics(running=0))
    assert balancer.choose({p: [2, 1, 2][p.rank] for p in ENGINES}.__getitem__).rank == 1


def test_a_snapshot_counts_what_others_sent() -> None:
    balancer, in_flight = make(), Counter[Peer]()
    for peer, running in zip(ENGINES, [5, 9, 4], strict=True):
        balancer.handle_statistics(peer, EngineStatistics(running=running))
    chosen = []
    for _ in range(3):
        chosen.append(balancer.choose(in_flight.__getitem__))
        in_flight[chosen[-1]] += 1
    # After the first both have 5, and it is engine 2's turn once more.
    assert [peer.rank for peer in chosen] == [2, 2, 0]


def test_what_a_snapshot_does_not_count_yet_stays_counted() -> None:
    balancer, in_flight = make(engines=2), {ENGINES[0]: 4, ENGINES[1]: 0}
    balancer.handle_statistics(ENGINES[1], EngineStatistics(running=6))
    balancer.handle_statistics(ENGINES[0], EngineStatistics(running=4), 1)
    assert balancer.choose(in_flight.__getitem__).rank == 1, "three more were sent to engine 0"
    balancer.handle_statistics(ENGINES[0], EngineStatistics(running=4), 4)
    assert balancer.choose(in_flight.__getitem__).rank == 0
    balancer.handle_statistics(ENGINES[0], EngineStatistics(running=7), 4)
    assert balancer.choose(in_flight.__getitem__).rank == 1
    in_flight[ENGINES[0]] = 2
    assert balancer.choose(in_flight.__getitem__).rank == 0, "two have ended since"


def test_waiting_weighs_more_on_a_full_engine() -> None:
    balancer = make(engines=2)
    full = EngineStatistics(waiting=2, running=0, kv_blocks=10, kv_blocks_free=0)
    free = EngineStatistics(waiting=2, running=5, kv_blocks=10, kv_blocks_free=10)
    balancer.handle_statistics(ENGINES[0], full)
    balancer.handle_statistics(ENGINES[1], free)
    assert balancer.choose(lambda _: 0).rank == 1  # 2 + 2 × 3 against 7


def test_a_successor_begins_without_its_predecessors_counts() -> None:
    balancer = make(engines=2)
    for peer in ENGINES[:2]:
        balancer.handle_statistics(peer, EngineStatistics(running=9))
    successor = Peer("engine", 0, 2)
    balancer.set_engines([successor, ENGINES[1]])
    balancer.handle_statistics(ENGINES[0], EngineStatistics(running=99))
    assert balancer.choose(lambda _: 0) == successor
    assert balancer.engines == [successor, ENGINES[1]]


@given(st.integers(1, 60), st.lists(st.integers(0, 2), max_size=40))
def test_in_flight_counts_never_differ_by_more_than_one(count: int, ends: list[int]) -> None:
    """Requests only arrive: the floor alone keeps the engines level, snapshots missing or zero."""
    balancer = make()
    in_flight = Counter[Peer]()
    for place in range(count):
        in_flight[balancer.choose(in_flight.__getitem__)] += 1
        balancer.check_invariants()
        if place < len(ends):
            balancer.handle_statistics(ENGINES[ends[place]], EngineStatistics())
    loads = [in_flight[peer] for peer in ENGINES]
    assert max(loads) - min(loads) <= 1


def test_of_many_engines_the_queues_stay_level() -> None:
    """As many requests as fit on average, ending in any order: nobody has many more."""
    engines = [Peer("engine", rank, 1) for rank in range(256)]
    balancer = LeastLoaded(chance=random.Random(1))
    balancer.set_engines(engines)
    in_flight, alive = Counter[Peer](), list[Peer]()
    chance = random.Random(2)
    for number in range(20_000):
        if number >= 10 * len(engines):
            in_flight[alive.pop(chance.randrange(len(alive)))] -= 1
        peer = balancer.choose(in_flight.__getitem__)
        in_flight[peer] += 1
        alive.append(peer)
    assert max(in_flight.values()) <= 12


ENGINES_OF_SHARES = [Peer("engine", rank, 1) for rank in range(2)]
TRAVEL_MS, REPORT_MS, BATCH_MAX = 1.0, 100.0, 16
SECONDS = 4


@attrs.define(eq=False)
class Frontend:
    balancer: LeastLoaded
    # {engine: attempts that have not ended}, in order.
    sent: dict[Peer, dict[int, None]] = attrs.field(
        factory=lambda: {p: {} for p in ENGINES_OF_SHARES}
    )

    def choose(self, attempt: int) -> Peer:
        peer = self.balancer.choose(lambda engine: len(self.sent[engine]))
        self.sent[peer][attempt] = None
        return peer


@attrs.define(eq=False)
class Engine:
    """How long a step takes, who waits, who runs, and the last attempt of each frontend."""

    step_ms: float
    waiting: list[tuple[int, int]] = attrs.field(factory=list)
    running: list[tuple[int, int]] = attrs.field(factory=list)
    last: dict[int, int] = attrs.field(factory=lambda: {0: 0, 1: 0})

    def snapshot(self) -> EngineStatistics:
        return EngineStatistics(waiting=len(self.waiting), running=len(self.running))


@attrs.define(eq=False)
class Simulation:
    """`spread[second]` counts the requests that each engine was sent."""

    gap_ms: float
    steps_ms: tuple[float, float]
    spread: list[Counter[Peer]] = attrs.field(factory=lambda: [Counter() for _ in range(SECONDS)])
    waited_ms: list[float] = attrs.field(factory=list)

    def run(self) -> None:
        chance, order = random.Random(7), itertools.count()
        engines = {p: Engine(ms) for p, ms in zip(ENGINES_OF_SHARES, self.steps_ms, strict=True)}
        frontends = [Frontend(LeastLoaded(2, rank)) for rank in range(2)]
        for frontend in frontends:
            frontend.balancer.set_engines(ENGINES_OF_SHARES)
        begun: dict[int, float] = {}
        events: list[tuple[float, int, str, object]] = []

        def at(when: float, what: str, about: object) -> None:
            heapq.heappush(events, (when, next(order), what, about))

        at(0.0, "request", 1)
        for peer in ENGINES_OF_SHARES:
            at(0.0, "report", peer)
        while events:
            now, _, what, about = heapq.heappop(events)
            if now >= SECONDS * 1000:
                break
            match what, about:
                case "request", int(attempt):
                    name = chance.randrange(2)
                    peer = frontends[name].choose(attempt)
                    self.spread[int(now // 1000)][peer] += 1
                    begun[attempt] = now
                    at(now + TRAVEL_MS, "add", (peer, name, attempt))
                    at(now + chance.expovariate(1 / self.gap_ms), "request", attempt + 1)
                case "add", (Peer() as peer, int(name), int(attempt)):
                    engine = engines[peer]
                    engine.waiting.append((name, attempt))
                    engine.last[name] = attempt
                    if not engine.running:
                        at(now, "step", peer)
                case "step", Peer() as peer:
                    engine = engines[peer]
                    for name, attempt in engine.running:
                        at(now + TRAVEL_MS, "end", (peer, name, attempt))
                    engine.running = engine.waiting[:BATCH_MAX]
                    del engine.waiting[:BATCH_MAX]
                    if engine.running:
                        at(now + engine.step_ms, "step", peer)
                case "end", (Peer() as peer, int(name), int(attempt)):
                    del frontends[name].sent[peer][attempt]
                    self.waited_ms.append(now - begun.pop(attempt))
                case "report", Peer() as peer:
                    engine = engines[peer]
                    at(now + TRAVEL_MS, "heard", (peer, engine.snapshot(), dict(engine.last)))
                    at(now + REPORT_MS, "report", peer)
                case "heard", (Peer() as peer, EngineStatistics() as snapshot, dict(last)):
                    for name, frontend in enumerate(frontends):
                        counted = sum(attempt <= last[name] for attempt in frontend.sent[peer])
                        frontend.balancer.handle_statistics(peer, snapshot, counted)


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_equal_engines_get_equal_shares_in_every_second(load: float) -> None:
    simulation = Simulation(gap_ms=5.0 / (2 * BATCH_MAX * load), steps_ms=(5.0, 5.0))
    simulation.run()
    for counts in simulation.spread:
        assert abs(counts[ENGINES_OF_SHARES[0]] / counts.total() - 0.5) < 0.03


def test_an_engine_that_is_half_as_fast_gets_less_and_nobody_waits_long() -> None:
    simulation = Simulation(gap_ms=10.0 / (3 * BATCH_MAX * 0.8), steps_ms=(5.0, 10.0))
    simulation.run()
    total = sum(simulation.spread, Counter[Peer]())
    assert 0.6 < total[ENGINES_OF_SHARES[0]] / total.total() < 0.7
    assert sorted(simulation.waited_ms)[len(simulation.waited_ms) * 99 // 100] < 40
