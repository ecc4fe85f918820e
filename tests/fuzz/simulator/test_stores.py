"""A simulated process dies between any two stores, or in one; the dead store nothing."""

import attrs
import pytest

from triolet.fuzz.doubles.journal_memory import Freed, NotedMemory, Published, Store, Stored
from triolet.fuzz.simulator.stores import Stores, WatchedJournal
from triolet.runtime.journal.records import REBUILDING_AT


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


def test_a_writer_in_the_midst_of_several_stores_stores_nothing_after_its_death() -> None:
    left = bytearray(4)
    writer, stores = Writer(memoryview(left)), Stores()
    stores.add(writer)
    stores.plan_death(0, stores.end, is_torn=True)
    memory = writer.memory
    memory[:2], memory[2:] = b"ab", b"cd"
    assert left == b"a\0\0\0"


def test_the_dead_may_read_and_write_as_before() -> None:
    writer, stores = Writer(memoryview(bytearray(8))), Stores()
    stores.add(writer)
    stores.end()
    writer.memory[2:6] = b"abcd"
    assert writer.memory[2:6] == bytes(4)
    assert len(writer.memory) >= 8


ALL: list[Store] = [Stored(4096, b"abcd"), Published(REBUILDING_AT, 7), Freed(4096, 8192)]


def journal_that_dies(after: int, *, is_torn: bool) -> list[Store]:
    """What of these stores of a journal was made; the stream that is rebuilt is heard of."""
    memory, stores, rebuilt = NotedMemory(bytearray(8192)), Stores(), list[int]()
    watched = WatchedJournal(memory, rebuilt.append)
    stores.add(watched)
    stores.plan_death(after, stores.end, is_torn=is_torn)
    for store in ALL:
        store.apply_to(watched)
    assert rebuilt == [7]
    return memory.stores


@pytest.mark.parametrize("after", range(4))
def test_a_journal_is_left_as_it_was_at_a_death(after: int) -> None:
    assert journal_that_dies(after, is_torn=False) == ALL[:after]


def test_a_journal_may_be_torn_at_a_death() -> None:
    *_, stored = journal_that_dies(0, is_torn=True)
    assert isinstance(stored, Stored)
    assert stored != ALL[0]
    assert journal_that_dies(1, is_torn=True) == ALL[:1]  # one word is stored or not
    *before, freed = journal_that_dies(2, is_torn=True)
    assert before == ALL[:2]
    assert isinstance(freed, Freed)
    assert freed.end - freed.begin == 2048
