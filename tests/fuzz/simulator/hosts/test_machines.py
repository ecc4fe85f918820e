"""Several machines, simulated: plans by hand hold without a bug, and a seed has one trace."""

from random import Random

import attrs
import pytest
import trio
from trio.testing import MockClock

from triolet.fuzz.simulator.hosts.bugs import HOST_PLANS
from triolet.fuzz.simulator.hosts.link import SlowWay
from triolet.fuzz.simulator.hosts.machines import LEASE
from triolet.fuzz.simulator.hosts.plan import HOSTS, draw_with_hosts
from triolet.fuzz.simulator.plan import Event, Fault, FaultKind, Request
from triolet.fuzz.simulator.simulation import simulate


@pytest.mark.parametrize("bug", HOST_PLANS)
def test_a_plan_by_hand_holds_without_its_bug(bug: str) -> None:
    simulate(HOST_PLANS[bug])


def test_a_seed_has_one_trace() -> None:
    plans = [draw_with_hosts(Random(3), 14) for _ in range(2)]
    assert len({simulate(plan).digest for plan in plans}) == 1


@pytest.mark.parametrize(
    ("kind", "for_s", "states"),
    [
        (FaultKind.KILL_HOST, 0.0, {"lost": 1}),
        (FaultKind.HOST_OFF, 5.0, {"silent": 1, "lost": 1}),
        (FaultKind.CUT_HOST, 0.6, {}),
        (FaultKind.CUT_HOST, 2 * LEASE.suspect_s, {"silent": 1, "up": 1}),
        (FaultKind.CUT_HOST, 2 * LEASE.lease_s, {"silent": 1, "lost": 1}),
        (FaultKind.MUTE_HOST, 2 * LEASE.suspect_s, {"silent": 1, "up": 1}),
        (FaultKind.MUTE_HOST, 2 * LEASE.lease_s, {"silent": 1, "lost": 1}),
        (FaultKind.DEAFEN_HOST, 2 * LEASE.suspect_s, {"silent": 1, "up": 1}),
    ],
)
def test_what_befalls_a_host_moves_its_streams_and_ends_none(
    kind: FaultKind, for_s: float, states: dict[str, int]
) -> None:
    requests = [
        Request(
            name=f"request-{number}",
            seed=number,
            at_s=0.0,
            frontend=0,
            prompt=[9, 8],
            max_tokens=40,
            pause_s=0.1,
        )
        for number in range(6)
    ]
    # Faults are healed when all are over: one of nobody is the last.
    rest = Fault(kind=FaultKind.CUT, at_s=0.0, engine=7, frontend=7, for_s=12.0)
    events: list[Event] = [
        attrs.evolve(HOSTS),
        *requests,
        Fault(kind=kind, at_s=0.0, tokens=20, for_s=for_s),
        rest,
    ]
    reached = simulate(events).reached
    assert reached["stream finished"] == 6
    assert {name: reached[f"host {name}"] for name in states} == states
    assert (reached["sent again"] > 0) == bool(states)


async def test_a_way_is_late_keeps_the_order_and_loses_what_a_cut_meets(
    autojump_clock: MockClock,
) -> None:
    came: list[tuple[float, object]] = []
    cut = False
    way = SlowWay(lambda: cut, lambda message: came.append((trio.current_time(), message)), 0.5)
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        way.send("a")
        way.send("b")
        cut = True
        way.send("c")
        way.close()
    assert [(at - began_s, message) for at, message in came] == [(0.5, "a"), (0.5, "b")]
