"""Simulates servers of several machines, whose hosts are killed, off, or cut off one way or both.

Invariant: as of whole servers, and a host that is given up computes no more.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from random import Random

from ..fuzzer import Fuzzer
from ..simulator.hosts.bugs import HOST_BREAKS, HOST_BUGS, HOST_CHECKS, HOST_PLANS
from ..simulator.hosts.plan import draw_with_hosts
from ..simulator.plan import OF_HOSTS, Event
from ..simulator.planted import CHECKS, Hunt
from ..simulator.simulation import Bug, simulate

# Found by the first seeds; `simulate --hosts --bugs` has them all.
QUICK = (
    "a silent host is lost",
    "a block of epochs is given again",
    "a rank is given twice",
    "a host that is heard again stays silent",
)


def check(events: Sequence[Event], bug: Bug) -> Counter[str]:
    """Run them in a simulation of their own."""
    return simulate(events, bug).reached


FUZZER = Fuzzer[Event, Bug](
    name="hosts",
    invariant="whatever befalls machines, each stream is the oracle's; the lost compute no more",
    draw=draw_with_hosts,
    check=check,
    target=nullcontext,
    faults={name: HOST_BUGS[name] for name in QUICK},
    round_events=14,
    smoke_rounds=20,
    reaches=frozenset({*map(str, OF_HOSTS), "host silent", "host up", "host lost"}),
)


def _given(plan: list[Event], chance: Random, count: int) -> list[Event]:
    return plan


HUNT = Hunt(
    FUZZER,
    simulate,
    HOST_BUGS,
    HOST_BREAKS,
    {**HOST_CHECKS, **CHECKS},
    {name: partial(_given, plan) for name, plan in HOST_PLANS.items()},
    "simulator/hosts/PLANTED.md",
    "simulate --hosts",
)
