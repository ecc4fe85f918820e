"""Fuzzers: run, shrunk, replayed, and shown to notice a planted fault.

A run is made of rounds. Each round has a seed of its own, from which its events are drawn *before*
anything runs; a check then runs them against a fresh target. So a failure needs no recording: the
seed and the round say it all, and any sublist of the events can be tried to find the short one that
still fails. A fault is another target with one rule broken: a fuzzer that cannot notice it is
worth nothing.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import attrs

E = TypeVar("E")
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
# Shrinking stops after so many checks or seconds: a shorter list is a comfort, not the finding.
SHRINK_CHECKS_MAX = 400
SHRINK_S = 10.0
# Events of a finding that are shown; what follows the last of them is the error.
SHOWN_EVENTS_MAX = 30
SHOWN_CHARACTERS_MAX = 400


class Watch(Protocol):
    """Follows the events of a run, for one who outlives it."""

    def begin(self, number: int, events: Sequence[Any]) -> Sequence[Any]:
        """The events of this round, to be taken one by one."""

    def end(self) -> None:
        """The round is over, whatever came of it."""


@attrs.frozen(kw_only=True)
class Fuzzer(Generic[E, T]):
    """Fuzzer. `draw` and `check` are pure: the same seed gives the same round and verdict.

    `draw(chance, count)` gives the events of one round. `check(events, target)` runs them, whatever
    sublist they are, and raises when the invariant is broken; it returns what was reached, counted.
    If an event may end the process, `event_s_max` is the processor time of one, `check` takes one
    after the other, and a campaign has a child and a watch (`contained`).
    `faults` are targets with one rule broken each. A smoke run must reach all of `reaches`.
    """

    name: str
    invariant: str
    draw: Callable[[Random, int], list[E]]
    check: Callable[[Sequence[E], T], Counter[str]]
    target: T
    faults: Mapping[str, T]
    round_events: int = 100
    smoke_rounds: int = 20
    reaches: frozenset[str] = frozenset()
    event_s_max: float | None = None
    watch: Watch | None = None


AnyFuzzer = Fuzzer[Any, Any]


def each(draw_one: Callable[[Random], E]) -> Callable[[Random, int], list[E]]:
    """Draw the events of a round one by one, none of which needs to know the others."""
    return lambda chance, count: [draw_one(chance) for _ in range(count)]


def bare(call: Callable[P, R], *named: type[Exception]) -> Callable[P, R]:
    """Plant a fault: what is refused by name comes up as some other error."""

    def planted(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except named as error:
            raise ValueError(str(error)) from error

    return planted


@attrs.frozen
class Finding(Exception):
    """The invariant is broken; `events` are a short list that still breaks it."""

    fuzzer: str
    seed: int
    round_number: int
    events: tuple[object, ...]
    drawn: int
    error: Exception

    def __str__(self) -> str:
        shown = [repr(event)[:SHOWN_CHARACTERS_MAX] for event in self.events[-SHOWN_EVENTS_MAX:]]
        kind = type(self.error).__name__
        return "\n  ".join(
            [
                f"{self.fuzzer}, seed {self.seed}, round {self.round_number}: {self.drawn} events,"
                f" {len(self.events)} of them suffice:",
                *shown,
                f"{kind}: {self.error}",
                *getattr(self.error, "__notes__", ()),
                f"again: python -m triolet.fuzz {self.fuzzer} --seed {self.seed}"
                f" --round {self.round_number}",
            ]
        )


@attrs.frozen
class NotReached(Exception):
    """Nothing failed, but the run cannot have meant much: this never happened in it."""

    fuzzer: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.fuzzer} never reached: {', '.join(self.missing)}"


@attrs.frozen
class NotNoticed(Exception):
    """A fault was planted, and the fuzzer saw nothing."""

    fuzzer: str
    fault: str
    rounds: int

    def __str__(self) -> str:
        return f"{self.fuzzer} did not notice in {self.rounds} rounds: {self.fault}"


def run_round(fuzzer: AnyFuzzer, seed: int, number: int, target: object) -> Counter[str]:
    """Run a round. Raises `Finding`, with its events shrunk."""
    events, watch = draw_round(fuzzer, seed, number), fuzzer.watch
    try:
        try:
            return fuzzer.check(watch.begin(number, events) if watch else events, target)
        finally:
            if watch:
                watch.end()
    except Exception as error:
        short = shrink(fuzzer, events, target, error)
        raise Finding(
            fuzzer.name, seed, number, tuple(short), drawn=len(events), error=error
        ) from error


def draw_round(fuzzer: AnyFuzzer, seed: int, number: int) -> list[Any]:
    """The events of one round; a round's chance is its own, so that one can be run alone."""
    chance = Random(f"{fuzzer.name} {seed} {number}")
    return fuzzer.draw(chance, fuzzer.round_events)


def run_fuzzer(fuzzer: AnyFuzzer, *, seed: int, events: int | None = None) -> Counter[str]:
    """Rounds of one fuzzer until at least so many events; its smoke run without a number.

    Returns what was reached. Raises `Finding`; `NotReached` after a smoke run.
    """
    rounds = fuzzer.smoke_rounds if events is None else -(-events // fuzzer.round_events)
    reached: Counter[str] = Counter()
    for number in range(rounds):
        reached += run_round(fuzzer, seed, number, fuzzer.target)
    missing = tuple(sorted(name for name in fuzzer.reaches if not reached[name]))
    if events is None and missing:
        raise NotReached(fuzzer.name, missing)
    return reached


def run_canary(fuzzer: AnyFuzzer, fault: str, *, seed: int) -> tuple[int, Exception]:
    """Plant one fault; which round noticed it, and as what. Raises `NotNoticed`."""
    target = fuzzer.faults[fault]
    for number in range(fuzzer.smoke_rounds):
        events = draw_round(fuzzer, seed, number)
        try:
            fuzzer.check(events, target)
        except Exception as error:  # by design: noticing is failing, in whatever way
            return number, error
    raise NotNoticed(fuzzer.name, fault, fuzzer.smoke_rounds)


def shrink(
    fuzzer: AnyFuzzer, events: Sequence[Any], target: object, error: Exception
) -> Sequence[Any]:
    """A sublist that fails in the same way; not always the shortest."""
    deadline = time.monotonic() + SHRINK_S
    checks = 0
    size = max(1, len(events) // 2)
    while True:
        for shorter in _without_pieces(events, size):
            checks += 1
            if checks > SHRINK_CHECKS_MAX or time.monotonic() > deadline:
                return events
            if _fails(fuzzer, shorter, target, _way_of(error)):
                events = shorter
                break
        else:
            if size == 1:
                return events
            size //= 2


def _without_pieces(events: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Each list that lacks one run of `size` events, the last run first."""
    for start in reversed(range(0, len(events), size)):
        yield [*events[:start], *events[start + size :]]


def _fails(fuzzer: AnyFuzzer, events: Sequence[Any], target: object, way: object) -> bool:
    try:
        fuzzer.check(events, target)
    except Exception as error:  # by design, as above
        return _way_of(error) == way
    return False


def _way_of(error: Exception) -> tuple[type[Exception], frozenset[str]]:
    """Kind of a finding: the words of its error, whatever its numbers."""
    return type(error), frozenset(re.findall("[A-Za-z]+", str(error)))
