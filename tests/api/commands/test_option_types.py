"""Values as they were written, and what they should have been."""

from typing import Any

import pytest

from triolet.api.commands.option_types import fault_of_text, fault_of_value


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (int, ["0", "-3", "+5", "1_000"], ["", "1.0", "1e3", "0x10", "true", "nan", "9" * 9999]),
        (float, ["0", "1e3", "-.5"], ["", "nan", "inf", "1,5", "true", "1e999"]),
        (float | None, ["2.5"], ["two"]),
        (bool, ["true", "whatever the parser says of it"], []),
        (str, ["", "5"], []),
        (tuple[str, ...], ["a"], []),
    ],
)
def test_words(hint: Any, right: list[str], wrong: list[str]) -> None:
    assert [fault_of_text(hint, text) for text in right] == [""] * len(right)
    assert [text for text in wrong if not fault_of_text(hint, text)] == []


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (int, [0, -3], [1.0, True, "1", [1], {}, 2**63]),
        (float, [0, 1.5], [True, "1.5", float("nan"), float("inf"), 10**400]),
        (float | None, [2.5], ["2.5"]),
        (bool, [True, False], [0, 1, "true"]),
        (str, ["", "5"], [5, True, ["a"]]),
        (str | None, ["a"], [5]),
        (tuple[str, ...], ["a", ["a", "b"], []], [5, [5], ["a", 5]]),
        (dict[str, int], [{}, 5], []),
    ],
)
def test_values(hint: Any, right: list[object], wrong: list[object]) -> None:
    assert [fault_of_value(hint, value) for value in right] == [""] * len(right)
    assert [value for value in wrong if not fault_of_value(hint, value)] == []


def test_what_may_be_a_secret_is_not_quoted() -> None:
    assert fault_of_value(tuple[str, ...], [12345]) == "must be text"
