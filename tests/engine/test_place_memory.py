"""Memory of engines' places: what is whose, in the order in which it is passed."""

import os

import pytest

from triolet.engine.place_memory import PlaceMemory, open_memory_of_places
from triolet.tests.leaks import check_no_leaks


def name_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}").partition(" ")[0]


def test_weights_are_shared_and_the_rest_is_each_engines_own() -> None:
    with check_no_leaks(), open_memory_of_places(2) as (first, second):
        assert first.weights == second.weights
        assert len({*first.fds, *second.fds}) == 5
        names = ["/memfd:triolet-weights", "/memfd:triolet-cache", "/memfd:triolet-names"]
        assert [name_of(fd) for fd in first.fds] == names
        assert [name_of(fd) for fd in second.fds] == names


def test_places_come_and_go() -> None:
    with check_no_leaks(), open_memory_of_places(1) as places:
        added = places.add(3)
        assert added == places[3] == places.add(3)
        assert added.weights == places[0].weights
        places.remove(0)
        places.remove(0)
        assert list(places) == [added]


def test_what_was_passed_is_read_in_the_same_order() -> None:
    assert PlaceMemory.of((3, 4, 5)) == PlaceMemory(weights=3, cache=4, names=5)
    assert PlaceMemory.of(PlaceMemory(3, 4, 5).fds) == PlaceMemory(3, 4, 5)
    assert PlaceMemory.of(()) is None
    with pytest.raises(TypeError):
        PlaceMemory.of((3, 4))
