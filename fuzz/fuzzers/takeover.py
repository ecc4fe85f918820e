"""Simulates a frontend that dies at any store or write, under clients who read every byte.

Invariant: a client gets, byte by byte, what it gets when nothing dies; what it asked for is
executed once; its connection ends in order, in bounded time, and then nothing is held for it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from random import Random

import attrs

from ..fuzzer import Fuzzer
from ..simulator.planted import Hunt
from ..simulator.simulation import Bug
from ..simulator.takeover.bugs import TAKEOVER_BREAKS, TAKEOVER_BUGS, TAKEOVER_CHECKS
from ..simulator.takeover.plan import (
    FATAL_OVER_S,
    TRIED_S,
    Death,
    Event,
    Kind,
    Surroundings,
    Talk,
    draw,
)
from ..simulator.takeover.simulation import run_takeovers

# Found within a few seeds; `simulate --takeover --bugs` has them all.
QUICK = (
    "a slot is published after its write",
    "a slot has one half",
    "what the kernel has not of a chunk is dropped",
    "an aborted connection is closed",
    "an event's position is stated one late",
    "a request is let go when it was read",
    "a message that is taken drops what waits",
    "an id is claimed after the admission",
    "a new turn is not stated",
    "input is kept from where it was read to",
)


def check(events: Sequence[Event], bug: Bug) -> Counter[str]:
    """Run them in a simulation of their own, and once without deaths."""
    return run_takeovers(events, bug).reached


FUZZER = Fuzzer[Event, Bug](
    name="takeover",
    invariant="wherever a frontend dies, each client gets every byte once, and nothing else",
    draw=draw,
    check=check,
    target=nullcontext,
    faults={name: TAKEOVER_BUGS[name] for name in QUICK},
    round_events=6,
    smoke_rounds=40,
    reaches=frozenset({*map(str, Kind), "crash", "crash within a store", "taken over"}),
)


def _one_death(*talks: Event) -> Callable[[Random, int], list[Event]]:
    """Draw the only life that dies while these clients talk, at any of its effects."""
    return lambda chance, _: [*talks, Death(effects=chance.randrange(150))]


def _deaths(after_s: float, *others: Event) -> Callable[[Random, int], list[Event]]:
    """Three of them, each soon after its life has served for so long."""
    return lambda chance, _: [
        *others,
        *(Death(effects=chance.randrange(20), after_s=after_s) for _ in range(3)),
    ]


def _given(*events: Event) -> Callable[[Random, int], list[Event]]:
    return lambda chance, _: list(events)


_CREDIT = Talk(name="client-0", kind=Kind.CREDIT, seed=1, tokens=20)
_PIECES = Talk(name="client-0", kind=Kind.PIECES, seed=1, tokens=1)
_LATER = Talk(name="client-1", kind=Kind.PIECES, seed=2, tokens=1, at_s=1.0, piece_bytes=50)
_FATAL = Talk(name="fatal", kind=Kind.FATAL, seed=1, tokens=1)
_STREAM = Talk(name="client-0", kind=Kind.RESPONSES, seed=1, tokens=70)
# The first request takes seven seconds.
_SLOW = attrs.evolve(_PIECES, piece_bytes=50, pause_s=0.8)
_ONE_SLOT = Surroundings(slots=1)
HUNT = Hunt(
    FUZZER,
    run_takeovers,
    TAKEOVER_BUGS,
    TAKEOVER_BREAKS,
    TAKEOVER_CHECKS,
    {
        "a client's FIN counts as a byte": _one_death(_PIECES),
        "100 Continue is forgotten": _one_death(_PIECES),
        "a grant takes effect before it is stated": _one_death(_CREDIT),
        "a grant is not stated": _one_death(_CREDIT),
        "an ended connection is passed on": _one_death(_PIECES),
        "a slot is not cleared": _one_death(_PIECES, _LATER),
        "what ends frontends is tried for ever": _given(
            _FATAL, attrs.evolve(_STREAM, at_s=FATAL_OVER_S)
        ),
        "what runs counts as untried": _deaths(0.02, attrs.evolve(_STREAM, tokens=200)),
        "a trial never ends": _deaths(TRIED_S, _SLOW),
        "a released slot stays taken": _given(_ONE_SLOT, _PIECES, _LATER),
        "two connections have one slot": _one_death(
            _ONE_SLOT, _STREAM, attrs.evolve(_STREAM, name="client-1", seed=2)
        ),
    },
    "simulator/takeover/PLANTED.md",
    "simulate --takeover",
)
