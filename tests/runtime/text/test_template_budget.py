"""Costs are counted before they are made, deep where a value is nested."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.text.template_budget import Budget, TemplateTooCostly

values = st.recursive(
    st.none() | st.integers() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=20,
)


def test_a_budget_ends() -> None:
    budget = Budget(left=10)
    budget.charge(10)
    with pytest.raises(TemplateTooCostly):
        budget.charge(1)


@given(values)
def test_the_weight_bounds_the_text(value: object) -> None:
    cost = Budget().weigh(value)
    assert len(str(value).encode("unicode_escape")) <= 64 * 10 * cost


@given(values)
def test_a_value_twice_weighs_twice(value: object) -> None:
    cost = Budget().weigh(value)
    assert Budget().weigh([value, value]) == 3 + 2 * cost


@given(st.text(max_size=300), st.integers(-5, 300))
def test_a_product_is_paid_for_before_it_is_made(text: str, times: int) -> None:
    budget = Budget()
    before = budget.left
    budget.multiply(text, times)
    assert 64 * (before - budget.left) >= len(text * times)


def test_entries_are_weighed_as_they_come() -> None:
    budget = Budget(left=50)
    values = budget.counted(iter(["a" * 640] * 9))
    assert len([next(values) for _ in range(4)]) == 4
    with pytest.raises(TemplateTooCostly):
        next(values)
