"""A settled heap: what was there is not looked at again, and what comes is still collected."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from triolet.nurseries.processes.heap import (
    MIDDLE_PER_OLD,
    YOUNG_OBJECTS,
    YOUNG_PER_MIDDLE,
    relax_collector,
    settle_heap,
    settle_modules,
)


@pytest.fixture(autouse=True)
def collector_restored() -> Iterator[None]:
    """Leave this process as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class Node:
    """Something that may be in a cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


def make_cycle() -> "weakref.ref[Node]":
    node, other = Node(), Node()
    node.other, other.other = other, node
    return weakref.ref(node)


def test_what_is_there_is_not_looked_at_again() -> None:
    before = make_cycle()
    keeps = [Node()]
    settle_heap()
    assert before() is None, "a cycle that nobody holds was frozen"
    assert all(item is not keeps[0] for item in gc.get_objects()), "it is still looked at"
    assert gc.get_freeze_count() > 0


def test_cycles_that_come_later_are_collected_without_being_asked() -> None:
    settle_heap()
    cycle = make_cycle()
    for _ in range(2):  # the second time it is not the youngest any more
        kept: list[list[int]] = [[] for _ in range(YOUNG_OBJECTS + 1)]
        del kept
    assert cycle() is None
    assert gc.get_threshold() == (YOUNG_OBJECTS, YOUNG_PER_MIDDLE, MIDDLE_PER_OLD)


def test_modules_are_not_looked_at_again_and_nothing_is_collected() -> None:
    cycle = make_cycle()
    keeps = [Node()]
    settle_modules()
    assert cycle() is not None
    assert all(item is not keeps[0] for item in gc.get_objects())


def test_a_relaxed_collector_still_collects() -> None:
    relax_collector()
    assert gc.isenabled()
    assert gc.get_threshold() == (YOUNG_OBJECTS, YOUNG_PER_MIDDLE, MIDDLE_PER_OLD)
