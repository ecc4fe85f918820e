"""A simulated process dies between any two stores, or in one; the dead store nothing."""

import attrs
import pytest

from triolet.fuzz.simulator.stores import Stores


@attrs.define
class Writer:
    memory: memoryview


def life_that_dies(after: int, *, is_torn: bool) -> bytes:
    """What is left of stores of 1, 2, 3, 4 by a process that is added when its death is planned."""
    left = bytearray(8)
    first, second = Writer(memoryview(left)[:4]), Writer(memoryview(left)[4:])
    stores, deaths = Stores(), []

    def die() -> None:
        assert stores.is_fatal
        deaths.append(stores)
        stores.end()

    stores.add(first)
    stores.plan_death(after, die, is_torn=is_torn)
    stores.add(second)
    for value in (1, 2):
        for writer in (first, second):
            writer.memory[:] = bytes([value]) * 4
    assert len(deaths) == (after < 4)
    assert stores.is_fatal == (after < 4)
    return bytes(left)


@pytest.mark.parametrize(
    ("after", "whole", "torn"),
    [
        (0, "00000000", "11000000"),
        (1, "11110000", "11111100"),
        (2, "11111111", "22111111"),
        (3, "22221111", "22222211"),
        (4, "22222222", "22222222"),
    ],
)
def test_what_is_stored_before_a_death_is_left_and_nothing_after(
    after: int, whole: str, torn: str
) -> None:
    assert life_that_dies(after, is_torn=False) == bytes(map(int, whole))
    assert life_that_dies(after, is_torn=True) == bytes(map(int, torn))


def test_the_dead_may_read_and_write_as_before() -> None:
    writer, stores = Writer(memoryview(bytearray(8))), Stores()
    stores.add(writer)
    stores.end()
    writer.memory[2:6] = b"abcd"
    assert writer.memory[2:6] == bytes(4)
    assert len(writer.memory) >= 8
