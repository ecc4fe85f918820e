"""Planted bugs: none is lost, and the test that finds each is there."""

from .house import ROOT
from .planted import LEAST, planted, sums


def test_none_is_lost() -> None:
    found = sums()
    assert {kind: min(found[kind], least) for kind, least in LEAST.items()} == LEAST


def test_each_is_found_by_a_test_that_is_there() -> None:
    assert all((ROOT / each.test).is_file() for each in planted() if each.test)
