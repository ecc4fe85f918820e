"""What a caller gives with a prompt: a refusal names its argument, and the good is taken."""

import math
from typing import Any

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.runtime.frontend.request_arguments import CREDIT_MAX, PRIORITY_MAX, check_arguments

GOOD: dict[str, Any] = {
    "labels": {"request_id": "a", "cache_salt": "ä"},
    "priority": 0,
    "credit": None,
    "events": False,
    "times_s": {"deadline_s": math.inf, "merge_s": 0},
}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"priority": -PRIORITY_MAX},
        {"credit": 0},
        {"credit": CREDIT_MAX},
        {"times_s": {"deadline_s": -1}},
    ],
    ids=str,
)
def test_these_are_taken(changed: dict[str, Any]) -> None:
    check_arguments(**{**GOOD, **changed})


@pytest.mark.parametrize(
    ("changed", "parameter"),
    [
        ({"labels": {"request_id": 5}}, "request_id"),
        ({"labels": {"principal": "\ud800"}}, "principal"),
        ({"priority": "1"}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": PRIORITY_MAX + 1}, "priority"),
        ({"credit": -1}, "credit"),
        ({"credit": 2.0}, "credit"),
        ({"credit": CREDIT_MAX + 1}, "credit"),
        ({"events": 1}, "events"),
        ({"times_s": {"deadline_s": math.nan}}, "deadline_s"),
        ({"times_s": {"merge_s": "1"}}, "merge_s"),
        ({"times_s": {"merge_s": True}}, "merge_s"),
    ],
    ids=str,
)
def test_these_are_refused_by_name(changed: dict[str, Any], parameter: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_arguments(**{**GOOD, **changed})
    assert caught.value.parameter == parameter
