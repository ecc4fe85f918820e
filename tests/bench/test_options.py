"""What is said to the sub-commands is refused by name where it makes no sense."""

from typing import Any

import pytest

from triolet.bench.options import (
    FloorOptions,
    LatencyOptions,
    PrefixOptions,
    StartupOptions,
    ThroughputOptions,
    TimelineOptions,
)
from triolet.engine.errors import InvalidParameter


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"requests": 0}, "requests"),
        ({"prompt_min": 9, "prompt_max": 8}, "prompt_max"),
        ({"rounds": 0}, "rounds"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"against": "vllm"}, "against"),
        ({"against": "transformers", "temperature": 1.0}, "against"),
        ({"against_threads": -1}, "against_threads"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(words: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        ThroughputOptions(**words)
    assert caught.value.parameter == named


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"running": 0}, "running"),
        ({"steps": 0}, "steps"),
        ({"tokens": 3}, "tokens"),
        ({"svg": "/nowhere/x.svg"}, "svg"),
    ],
    ids=str,
)
def test_a_timeline_of_nothing_is_refused(words: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        TimelineOptions(**words)
    assert caught.value.parameter == named


@pytest.mark.parametrize(
    ("kind", "words", "named"),
    [
        (LatencyOptions, {"concurrency": (1, 0)}, "concurrency"),
        (LatencyOptions, {"rates": (0.0,)}, "rates"),
        (LatencyOptions, {"rates": (float("nan"),)}, "rates"),
        (LatencyOptions, {"prompt_min": 9, "prompt_max": 8}, "prompt_max"),
        (LatencyOptions, {"tokens": 0}, "tokens"),
        (LatencyOptions, {"requests": -1}, "requests"),
        (StartupOptions, {"rounds": 0}, "rounds"),
        (PrefixOptions, {"turns": 7, "conversations": 8}, "turns"),
        (PrefixOptions, {"system_tokens": 0}, "system_tokens"),
        (FloorOptions, {"batch": (0,)}, "batch"),
        (FloorOptions, {"context": 0}, "context"),
    ],
    ids=str,
)
def test_loads_starts_and_floors_of_nothing_are_refused(
    kind: type, words: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        kind(**words)
    assert caught.value.parameter == named


def test_a_load_has_requests_for_each_place() -> None:
    assert [LatencyOptions().requests_of(n) for n in (0, 1, 8, 32)] == [8, 8, 32, 128]
    assert [LatencyOptions(quick=True).requests_of(n) for n in (0, 1, 8)] == [2, 2, 8]
    assert LatencyOptions(requests=5).requests_of(32) == 5
    assert StartupOptions(quick=True).repeats() == FloorOptions(quick=True).repeats() == 1


def test_turns_are_shared_out_to_conversations() -> None:
    assert PrefixOptions().turns_each() == 8
    assert PrefixOptions(quick=True).turns_each() == 2
    assert PrefixOptions(turns=3, conversations=3, quick=True).turns_each() == 1


def test_a_key_is_not_printed() -> None:
    assert "secret" not in repr(LatencyOptions(api_key="secret"))


def test_a_quick_run_is_smaller_and_shorter() -> None:
    whole, quick = ThroughputOptions(), ThroughputOptions(quick=True)
    assert (quick.work().requests, quick.work().tokens, quick.repeats()) == (16, 32, 1)
    assert (whole.work().requests, whole.work().tokens, whole.repeats()) == (64, 128, 3)
    assert ThroughputOptions(quick=True, requests=1, tokens=1).work().requests == 1
