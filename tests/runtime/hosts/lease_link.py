"""A host link in simulated time: both ends of a lease, with clocks of their own and a bad network
between them."""

import heapq
from collections.abc import Callable
from random import Random

import attrs

from triolet.runtime.hosts.host_messages import HostBeat, LeaseSettings
from triolet.runtime.hosts.lease import HostLease, HostState, HostWatch


@attrs.frozen(kw_only=True)
class Network:
    """How a way behaves; `cuts` are the times, from and until, in which it carries nothing."""

    delay_s: float = 0.001
    jitter_s: float = 0.0
    loss: float = 0.0
    doubling: float = 0.0
    cuts: tuple[tuple[float, float], ...] = ()

    def arrivals(self, now: float, chance: Random) -> list[float]:
        """When what is sent now arrives, each time that it does."""
        if chance.random() < self.loss or any(since <= now < until for since, until in self.cuts):
            return []
        count = 2 if chance.random() < self.doubling else 1
        return [now + self.delay_s + chance.uniform(0, self.jitter_s) for _ in range(count)]


@attrs.define(eq=False)
class LeaseLink:
    """Both ends; `states` are the host's, with their times, as the head saw them.

    `rates` are those of the host's and of the head's clock. `pauses` of the host, from and until:
    it neither reads nor sends, as when it is stopped.
    """

    to_head: Network = attrs.field(factory=Network)
    to_host: Network = attrs.field(factory=Network)
    rates: tuple[float, float] = (1.0, 1.0)
    pauses: tuple[tuple[float, float], ...] = ()
    settings: LeaseSettings = attrs.field(factory=LeaseSettings)
    seed: int = 0
    make_lease: Callable[[LeaseSettings, float], HostLease] = HostLease
    make_watch: Callable[[LeaseSettings, float], HostWatch] = HostWatch
    states: list[tuple[float, HostState]] = attrs.field(factory=list, init=False)
    # When the host saw that its lease is over; it says nothing more then.
    over_at: float | None = attrs.field(default=None, init=False)
    lease: HostLease = attrs.field(init=False)
    watch: HostWatch = attrs.field(init=False)

    def host_clock(self, now: float) -> float:
        return 1e5 + now * self.rates[0]

    def head_clock(self, now: float) -> float:
        return 7.0 + now * self.rates[1]

    def run(self, until: float) -> None:
        """Run both ends up to this time, or until the host is lost."""
        chance = Random(self.seed)
        self.lease = self.make_lease(self.settings, self.host_clock(0.0))
        self.watch = self.make_watch(self.settings, self.head_clock(0.0))
        order = iter(range(10**9))
        queue: list[tuple[float, int, Callable[[float], object]]] = []

        def plan(at: float, what: Callable[[float], object]) -> None:
            heapq.heappush(queue, (at, next(order), what))

        def resumed(at: float) -> float:
            return max([at, *(until for since, until in self.pauses if since <= at < until)])

        def host_beats(now: float) -> None:
            if self.lease.is_over(self.host_clock(now)):
                self.over_at = self.over_at or now
                return
            beat = self.lease.handle_sent(self.host_clock(now))
            for at in self.to_head.arrivals(now, chance):
                plan(
                    at, lambda then: note(then, self.watch.handle_beat(beat, self.head_clock(then)))
                )
            plan(resumed(now + self.settings.beat_s / self.rates[0]), host_beats)

        def head_hears(now: float, beat: HostBeat) -> None:
            note(now, self.watch.handle_beat(beat, self.head_clock(now)))

        def head_beats(now: float) -> None:
            beat = self.watch.next_beat(self.head_clock(now))
            for at in self.to_host.arrivals(now, chance):
                plan(resumed(at), lambda then: self.lease.handle_beat(beat, self.host_clock(then)))
            plan(now + self.settings.beat_s / self.rates[1], head_beats)

        def look(now: float) -> None:
            note(now, self.watch.handle_timeout(self.head_clock(now)))
            plan(now + 0.02, look)

        def note(now: float, state: HostState | None) -> None:
            if state is not None:
                self.states.append((now, state))

        plan(0.0, host_beats)
        plan(0.0, head_beats)
        plan(0.0, look)
        while queue and queue[0][0] < until and self.watch.state is not HostState.LOST:
            now, _, what = heapq.heappop(queue)
            what(now)
            self.lease.check_invariants()
            self.watch.check_invariants()

    def seen(self) -> list[HostState]:
        return [state for _, state in self.states]
