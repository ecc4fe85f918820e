"""Shares of two engines under two frontends that send one-token requests: a simulation.

Requests come at random to either frontend, their ADDs and ends travel for a millisecond, an engine
takes what waits into one step after the other, and reports its counts at its own pace.
"""

import heapq
import itertools
import random
from collections import Counter

import attrs
import pytest

from triolet.engine.messages import EngineStatistics
from triolet.runtime.frontend.load_balancer import LeastLoaded
from triolet.transports.links.channel import Peer

ENGINES = [Peer("engine", rank, 1) for rank in range(2)]
TRAVEL_MS, REPORT_MS, BATCH_MAX = 1.0, 100.0, 16
SECONDS = 4


@attrs.define(eq=False)
class Frontend:
    balancer: LeastLoaded
    # {engine: attempts that have not ended}, in order.
    sent: dict[Peer, dict[int, None]] = attrs.field(factory=lambda: {p: {} for p in ENGINES})

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
        engines = {p: Engine(ms) for p, ms in zip(ENGINES, self.steps_ms, strict=True)}
        frontends = [Frontend(LeastLoaded(2, rank)) for rank in range(2)]
        for frontend in frontends:
            frontend.balancer.set_engines(ENGINES)
        begun: dict[int, float] = {}
        events: list[tuple[float, int, str, object]] = []

        def at(when: float, what: str, about: object) -> None:
            heapq.heappush(events, (when, next(order), what, about))

        at(0.0, "request", 1)
        for peer in ENGINES:
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
        assert abs(counts[ENGINES[0]] / counts.total() - 0.5) < 0.03


def test_an_engine_that_is_half_as_fast_gets_less_and_nobody_waits_long() -> None:
    simulation = Simulation(gap_ms=10.0 / (3 * BATCH_MAX * 0.8), steps_ms=(5.0, 10.0))
    simulation.run()
    total = sum(simulation.spread, Counter[Peer]())
    assert 0.6 < total[ENGINES[0]] / total.total() < 0.7
    assert sorted(simulation.waited_ms)[len(simulation.waited_ms) * 99 // 100] < 40
