"""Slopes of memory: a line's own, its scatter, and what of it is a violation."""

import math
import random

import attrs
import pytest

from triolet.fuzz.chaos.report.growth import SPAN_MIN_S, Sample, growth_of, slope_of

MIB = 2**20


def samples(mib_per_hour: float, *, seconds: float = 3600.0, scatter: float = 0.0) -> list[Sample]:
    chance = random.Random(1)
    return [
        Sample(
            at_s,
            int((50 + mib_per_hour * at_s / 3600 + chance.uniform(-scatter, scatter)) * MIB),
            40,
            60,
        )
        for at_s in (seconds * number / 36 for number in range(37))
    ]


def test_a_line_has_its_slope_and_no_error() -> None:
    slope, error = slope_of([(x, 3.0 + 2.0 * x) for x in (0.0, 1.0, 5.0, 7.0)])
    assert slope == pytest.approx(2.0)
    assert error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("points", [[], [(1.0, 1.0), (2.0, 5.0)], [(1.0, 1.0)] * 5])
def test_what_has_no_slope(points: list[tuple[float, float]]) -> None:
    assert slope_of(points) == (0.0, math.inf)


@pytest.mark.parametrize(
    ("growing", "invariants"),
    [
        (samples(2.0), ["I9"]),
        (samples(0.5), []),
        (samples(2.0, seconds=SPAN_MIN_S), []),  # too short to say
        (samples(1.2, scatter=3.0), []),  # its scatter explains as much
        (samples(9.0, scatter=1.0), ["I9"]),
    ],
)
def test_growth_that_is_too_much(growing: list[Sample], invariants: list[str]) -> None:
    found = growth_of("root (pid 7)", growing).judge()
    assert [each.invariant for each in found] == invariants


def test_what_it_fills_first_is_no_growth() -> None:
    growing = samples(40.0)
    filling = [Sample(each.at_s, min(each.memory_bytes, 60 * MIB), 40, 60) for each in growing]
    assert growth_of("frontend 0", filling).judge() == []


@pytest.mark.parametrize(("every", "invariants"), [(25, []), (5, ["I9"])])
def test_one_step_that_stays_is_no_growth(every: int, invariants: list[str]) -> None:
    stepping = [
        attrs.evolve(each, memory_bytes=each.memory_bytes + number // every * MIB)
        for number, each in enumerate(samples(0.1, scatter=0.1))
    ]
    assert [each.invariant for each in growth_of("root", stepping).judge()] == invariants


def test_descriptors_and_tasks_are_flat() -> None:
    flat = samples(0.0)
    grown = [
        attrs.evolve(each, descriptors=40 + number // 4, tasks=60 + number // 2)
        for number, each in enumerate(flat)
    ]
    evidence = [each.evidence for each in growth_of("root", grown).judge()]
    assert evidence == ["root: 45 descriptors became 46", "root: 71 tasks became 72"]
    assert growth_of("root", [*flat[:-1], grown[-1]]).judge() == [], "more came, and may go"
    assert "50.0 MiB" in str(growth_of("root", grown))
