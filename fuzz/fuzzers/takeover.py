"""Simulates a frontend that dies at any store or write, under clients who read every byte.

Invariant: a client gets, byte by byte, what it gets when nothing dies; what it asked for is
executed once; its connection ends in order, in bounded time, and then nothing is held for it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from random import Random

import attrs

from ..fuzzer import Fuzzer
from ..simulator.plan import Event, Setup
from ..simulator.planted import Hunt
from ..simulator.simulation import Bug, Outcome, simulate
from ..simulator.streams import Violation
from ..simulator.takeover.bugs import TAKEOVER_BREAKS, TAKEOVER_BUGS, TAKEOVER_CHECKS
from ..simulator.takeover.plan import Death, Kind, Talk

# Deaths in a row, each right after a takeover, that no connection pays for: see `LIVES_MAX`.
QUICK_DEATHS_MAX = 2
# A process that lives so long had no part in the death before it: see `TRIAL_S`.
TRIED_S = 1.5
# By then all processes are dead that a fatal request may end: no client comes before.
FATAL_OVER_S = 10.0
# So few that some connections have none.
SLOTS_FEW = (1, 2)
# An engine with room for every answer.
PLAIN = Setup(engines=1, kv_blocks=512)
# Most effects of a life are among its first so many.
EFFECTS_FEW, EFFECTS_MANY = 60, 900

# Clients of all kinds but one.
DRAWN = tuple(kind for kind in Kind if kind is not Kind.FATAL)
# Found by the first seeds; `simulate --takeover --bugs` has them all.
QUICK = (
    "a slot is published after its write",
    "what the kernel has of a chunk is not counted",
    "an aborted connection is closed",
    "a request is let go when it was read",
    "an id is claimed after the admission",
)


def draw(chance: Random, count: int) -> list[Event]:
    """A setup, then about `count` clients and deaths."""
    deaths = chance.randint(1, QUICK_DEATHS_MAX + 1)
    talks = [_draw_talk(chance, number) for number in range(max(1, count - deaths))]
    seed, window_tokens = chance.randrange(2**32), chance.choice((4, 16, 256))
    setup = attrs.evolve(PLAIN, seed=seed, window_tokens=window_tokens)
    killed = [_draw_death(chance, number) for number in range(deaths)]
    if chance.random() < 0.1:
        fatal = Talk(name="fatal", kind=Kind.FATAL, seed=0, tokens=1)
        return [setup, fatal, *(attrs.evolve(each, at_s=FATAL_OVER_S) for each in talks)]
    if chance.random() < 0.15:
        setup = attrs.evolve(setup, slots=chance.choice(SLOTS_FEW))
    return [setup, *talks, *killed]


def _draw_talk(chance: Random, number: int) -> Talk:
    kind = chance.choice([*DRAWN, Kind.LANES, Kind.CREDIT])
    pause_s = chance.choice((0.0, 0.0, 0.01))
    return Talk(
        name=f"client-{number}",
        kind=kind,
        seed=chance.randrange(2**31),
        tokens=chance.choice((1, 5, 20, 70)),
        at_s=chance.choice((0.0, 0.0, 0.05)),
        pause_s=pause_s,
        buffer_bytes=chance.choice((300, 2000, 2**14, 2**18)),
        # A client that is slower than its pongs may be late is cut off.
        read_bytes=chance.choice((1000, 2**16) if pause_s else (50, 1000, 2**16)),
        piece_bytes=chance.choice((7, 100, 2**16, 2**16)),
    )


def _draw_death(chance: Random, number: int) -> Death:
    is_quick = number < QUICK_DEATHS_MAX
    return Death(
        effects=chance.randrange(chance.choice((EFFECTS_FEW, EFFECTS_FEW, EFFECTS_MANY))),
        after_s=chance.choice((0.0, 0.0, 0.02, TRIED_S)) if is_quick else TRIED_S,
        is_torn=chance.random() < 0.4,
    )


@lru_cache(maxsize=64)
def undisturbed(events: tuple[Event, ...]) -> Outcome:
    """Simulation of these clients when nothing dies, and nothing is wrong."""
    return simulate(events)


def run_takeovers(
    events: Sequence[Event], bug: Bug = nullcontext, *, lines: list[str] | None = None
) -> Outcome:
    """Run it with its deaths, and compare with the undisturbed run. Raises `Violation`."""
    calm = undisturbed(tuple(each for each in events if not isinstance(each, Death)))
    outcome = simulate(events, bug, lines=lines)
    for name, said in outcome.said.items():
        for number, (got, wanted) in enumerate(zip(said, calm.said[name], strict=False)):
            if got != wanted:
                raise Violation(f"{name}: part {number} is {_differs(got, wanted)}")
        if len(said) != len(calm.said[name]):
            raise Violation(f"{name}: got {len(said)} parts, not {len(calm.said[name])}")
    return outcome


def _differs(got: str, wanted: str) -> str:
    pairs = enumerate(zip(got, wanted, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(got), len(wanted)))
    begin = max(0, place - 60)
    return f"{got[begin : place + 60]!r}, not {wanted[begin : place + 60]!r}"


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
    return lambda chance, _: [*talks, PLAIN, Death(effects=chance.randrange(150))]


def _deaths(after_s: float, *others: Event) -> Callable[[Random, int], list[Event]]:
    """Three of them, each soon after its life has served for so long."""
    return lambda chance, _: [
        *others,
        PLAIN,
        *(Death(effects=chance.randrange(20), after_s=after_s) for _ in range(3)),
    ]


def _given(*events: Event) -> Callable[[Random, int], list[Event]]:
    return lambda chance, _: [*events, PLAIN]


_CREDIT = Talk(name="client-0", kind=Kind.CREDIT, seed=1, tokens=20)
_PIECES = Talk(name="client-0", kind=Kind.PIECES, seed=1, tokens=1)
_LATER = Talk(name="client-1", kind=Kind.PIECES, seed=2, tokens=1, at_s=1.0, piece_bytes=50)
_FATAL = Talk(name="fatal", kind=Kind.FATAL, seed=1, tokens=1)
_STREAM = Talk(name="client-0", kind=Kind.RESPONSES, seed=1, tokens=70)
# The first request takes seven seconds.
_SLOW = attrs.evolve(_PIECES, piece_bytes=50, pause_s=0.8)
_ONE_SLOT = attrs.evolve(PLAIN, slots=1)
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
