"""Simulates whole servers in which everything dies, and judges every stream by an oracle.

Invariant: a stream has the oracle's tokens and logprobs, ends once, in bounded time, leaves nothing
behind, and a death that a survivor could make good ends none.
"""

import gc
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random

import attrs

from ..fuzzer import Finding, Fuzzer, NotNoticed, draw_round, run_canary, run_round
from ..simulator.bugs import BUGS
from ..simulator.directed import DIRECTED
from ..simulator.plan import BY_HAND, OF_HOSTS, Event, FaultKind, draw
from ..simulator.planted import BREAKS, CHECKS, Hunt, PlantedRow, check_of
from ..simulator.simulation import Bug, quiet, simulate

# Garbage is collected after so many seeds, and not while one runs.
COLLECTED_AFTER = 50
# A long campaign says where it is after so many: some five minutes.
SHOWN_AFTER = 5000
# Found by the first seeds; `simulate --bugs` has them all, and a test tries each.
QUICK = (
    "a finish with a token is lost",
    "a dead engine's counts stay",
    "a stream that is left is not aborted",
    "a block is leaked",
    "a step that is over is in the table",
    "a new frontend is not connected",
    "what cannot be resumed goes on",
)
# Every planted bug is to be found in so many seeds.
BUG_SEEDS_MAX = 500


def check(events: Sequence[Event], bug: Bug) -> Counter[str]:
    """Run them in a simulation of their own."""
    return simulate(events, bug).reached


# Reached by more rounds than a smoke run has, or by other fuzzers.
SELDOM = (FaultKind.KILL_SPARE, *BY_HAND, *OF_HOSTS)
FUZZER = Fuzzer[Event, Bug](
    name="simulator",
    invariant="whatever dies, each stream is the oracle's, ends once, in time, and leaves nothing",
    draw=draw,
    check=check,
    target=nullcontext,
    faults={name: BUGS[name] for name in QUICK},
    round_events=14,
    smoke_rounds=40,
    reaches=frozenset(
        {
            *(str(kind) for kind in FaultKind if kind not in SELDOM),
            *("stream finished", "stream left", "stream lost with its frontend"),
            *("stream refused", "death by poison", "inexact", "stop noticed"),
            *("sent again", "preempted", "prefix hit", "stray"),
            *("crash between two stores", "crash within a store"),
            *("came back", "read again finished", "adopter killed", "adopter crashed by a stream"),
        }
    ),
)


def _given(plan: list[Event], chance: Random, count: int) -> list[Event]:
    return plan


HUNT = Hunt(
    FUZZER,
    simulate,
    BUGS,
    BREAKS,
    CHECKS,
    {name: partial(_given, plan) for name, plan in DIRECTED.items()},
    "simulator/PLANTED.md",
    "simulate",
)


@attrs.frozen
class Campaign:
    """Many simulations: how many, what they reached, and one hash of all their traces."""

    seeds: int
    reached: Counter[str]
    digest: str
    cpu_s: float

    def __str__(self) -> str:
        crashes = self.reached["crash"]
        pace = crashes / max(self.cpu_s, 1e-9)
        return f"{self.seeds} seeds, {crashes} crashes, {pace:.0f} a second and core"

    def lines(self) -> list[str]:
        """Lines for people."""
        return [
            str(self),
            *(f"  {count:9} {name}" for name, count in sorted(self.reached.items())),
            f"trace {self.digest}",
        ]


@attrs.frozen
class NotRepeatable(Exception):
    """A seed failed once and then did not: the simulation is not deterministic."""

    seed: int

    def __str__(self) -> str:
        return f"seed {self.seed} failed, and held when it was run again"


@quiet()
def run_campaign(
    seeds: int,
    first: int,
    hunt: Hunt = HUNT,
    show: Callable[[Campaign], object] = lambda so_far: None,
    *,
    shrinks: bool = True,
) -> Campaign:
    """Simulate each seed from `first` on. Raises `Finding`, maybe shrunk, of the first that fails.

    `show` gets the campaign so far, now and then.
    """
    reached: Counter[str] = Counter()
    whole = hashlib.sha256()
    began_s = time.process_time()
    for seed in range(first, first + seeds):
        events = draw_round(hunt.fuzzer, seed, 0)
        try:
            outcome = hunt.simulate(events)
        except Exception as error:
            if not shrinks:
                whole_plan, drawn = tuple(events), len(events)
                raise Finding(hunt.fuzzer.name, seed, 0, whole_plan, drawn, error) from error
            run_round(hunt.fuzzer, seed, 0, hunt.fuzzer.target)  # fails again, and is shrunk
            raise NotRepeatable(seed) from error
        reached += outcome.reached
        whole.update(outcome.digest.encode())
        if seed % COLLECTED_AFTER == 0:
            gc.collect()
        count, spent_s = seed - first + 1, time.process_time() - began_s
        if count % SHOWN_AFTER == 0 and count < seeds:
            show(Campaign(count, reached, whole.hexdigest()[:16], spent_s))
    return Campaign(seeds, reached, whole.hexdigest()[:16], time.process_time() - began_s)


def trace_of(seed: int, hunt: Hunt = HUNT) -> Iterator[str]:
    """Everything that happens in the simulation of a seed, and the violation that ends it."""
    lines: list[str] = []
    try:
        with quiet():
            hunt.simulate(draw_round(hunt.fuzzer, seed, 0), lines=lines)
    except AssertionError as error:
        lines.append(f"{type(error).__name__} {error}\n")
    finally:
        yield from lines


def find_bugs(seed: int, show: Callable[[str], object], hunt: Hunt = HUNT) -> list[PlantedRow]:
    """Plant each bug, and `show` in a line in which round it is found, and how.

    Raises `NotNoticed` in the end of those that were not.
    """
    rows, missed = [], []
    for name in hunt.bugs:
        try:
            number, error = find_bug(name, seed, hunt=hunt)
        except NotNoticed:
            missed.append(name)
            show(f"      - {name}: not found")
        else:
            how = f"{type(error).__name__} {error}".partition("\n")[0]
            show(f"  {number:5} {name}: {how}")
            found, check_name = (
                None if name in hunt.by_hand else number,
                check_of(error, hunt.checks),
            )
            rows.append(PlantedRow(name, hunt.breaks[name], check_name, found, number + 1))
        gc.collect()
    show(f"{len(rows)} of {len(hunt.bugs)} planted bugs were found")
    if missed:
        raise NotNoticed(hunt.fuzzer.name, ", ".join(missed), BUG_SEEDS_MAX)
    return rows


def find_bug(
    name: str, seed: int, *, rounds: int = BUG_SEEDS_MAX, hunt: Hunt = HUNT
) -> tuple[int, Exception]:
    """Which round finds this planted bug, or its plan by hand, and as what.

    Raises `NotNoticed`, and `Finding` if what was found is there without it.
    """
    patient = attrs.evolve(hunt.patient_for(name), smoke_rounds=rounds)
    number, error = run_canary(patient, name, seed=seed)
    run_round(patient, seed, number, patient.target)
    return number, error
