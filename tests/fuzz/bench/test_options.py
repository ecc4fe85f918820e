"""What is said to the sub-commands is refused by name where it makes no sense."""

from typing import Any

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.fuzz.bench.options import ThroughputOptions, TimelineOptions


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


def test_a_quick_run_is_smaller_and_shorter() -> None:
    whole, quick = ThroughputOptions(), ThroughputOptions(quick=True)
    assert (quick.work().requests, quick.work().tokens, quick.repeats()) == (16, 32, 1)
    assert (whole.work().requests, whole.work().tokens, whole.repeats()) == (64, 128, 3)
    assert ThroughputOptions(quick=True, requests=1, tokens=1).work().requests == 1
