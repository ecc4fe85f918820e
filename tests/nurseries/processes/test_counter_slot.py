"""Counter slots: whatever dies between two stores, sums grow and numbers keep their names."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from triolet.nurseries.processes.counter_slot import (
    COUNTER,
    GAUGE,
    NAME_BYTES,
    NUMBERS_MAX,
    OWNER,
    SLOT_BYTES,
    CounterSlot,
    Name,
    Store,
    sum_slots,
)

LAYOUT, OTHER_LAYOUT = 7, 8
DONE: Name = (COUNTER, "done")
ACTIVE: Name = (GAUGE, "active")
NAMES: list[Name] = [DONE, ACTIVE, (COUNTER, "times", 0), (COUNTER, "by", "GET /é", 200)]


def make_words() -> memoryview:
    return memoryview(bytearray(SLOT_BYTES)).cast("Q")


def store(words: memoryview, stores: Iterable[Store], most: int | None = None) -> int:
    """Make them, at most so many, as one does that is killed then; how many were made."""
    count = 0
    for index, word in islice(stores, most):
        words[index] = word
        count += 1
    return count


def open_slot(words: memoryview, numbers: dict[Name, int], layout: int = LAYOUT) -> CounterSlot:
    slot = CounterSlot(words, layout)
    store(words, slot.begin(1, numbers))
    return slot


def test_numbers_of_all_slots_are_added_up() -> None:
    first, second = make_words(), make_words()
    open_slot(first, {DONE: 3, ACTIVE: 1})
    slot = open_slot(second, {DONE: 4, ACTIVE: 2})
    store(second, slot.change({DONE: 5, ACTIVE: 0}))
    assert sum_slots([first, second], LAYOUT) == {DONE: 8, ACTIVE: 1}


def test_a_slot_that_was_written_over_is_skipped_and_begun_anew() -> None:
    sound, spoilt = make_words(), make_words()
    open_slot(sound, {DONE: 3})
    open_slot(spoilt, {DONE: 4, ACTIVE: 2})
    for index in range(OWNER + 1, len(spoilt)):
        if spoilt[index] not in (0, LAYOUT):
            spoilt[index] = 2**64 - 1
    assert sum_slots([sound, spoilt], LAYOUT) == {DONE: 3}
    open_slot(spoilt, {DONE: 1})
    assert sum_slots([sound, spoilt], LAYOUT) == {DONE: 4}


def test_a_successor_goes_on_from_counters_and_not_from_gauges() -> None:
    words = make_words()
    open_slot(words, {DONE: 3, ACTIVE: 1, (GAUGE, "gone"): 9})
    words[OWNER] = 0
    assert sum_slots([words], LAYOUT) == {DONE: 3}
    slot = open_slot(words, {DONE: 0, ACTIVE: 0})
    store(words, slot.change({DONE: 2, ACTIVE: 4}))
    assert sum_slots([words], LAYOUT) == {DONE: 5, ACTIVE: 4, (GAUGE, "gone"): 0}
    store(words, slot.end())
    assert sum_slots([words], LAYOUT) == {DONE: 5}


def test_what_has_not_changed_is_not_stored() -> None:
    words = make_words()
    slot = open_slot(words, {DONE: 3, ACTIVE: 1})
    assert list(slot.change({DONE: 3, ACTIVE: 1})) == []
    assert store(words, slot.change({DONE: 3, ACTIVE: 2})) == 1


def test_numbers_without_room_are_left_out() -> None:
    words = make_words()
    numbers: dict[Name, int] = {(COUNTER, n): 1 for n in range(NUMBERS_MAX)}
    slot = open_slot(words, {(COUNTER, "x" * NAME_BYTES): 1, **numbers, DONE: 1})
    assert sum_slots([words], LAYOUT) == numbers
    assert list(slot.change({DONE: 2})) == []


def test_another_layout_is_never_read() -> None:
    """Neither by a reader of ours nor by a successor, whatever of its take-over was stored."""
    for most in range(99):
        words = make_words()
        open_slot(words, {DONE: 3, ACTIVE: 5})
        upgraded = CounterSlot(words, OTHER_LAYOUT)
        stored = store(words, upgraded.begin(1, {(COUNTER, "other"): 4}), most)
        assert sum_slots([words], LAYOUT) in ({DONE: 3, ACTIVE: 5}, {})
        assert sum_slots([words], OTHER_LAYOUT) in ({}, {(COUNTER, "other"): 4})
        open_slot(words, {ACTIVE: 1}, OTHER_LAYOUT)
        total = sum_slots([words], OTHER_LAYOUT)
        assert total.pop((COUNTER, "other"), 4) == 4
        assert total == {ACTIVE: 1}
        if stored < most:
            return
    raise AssertionError("a take-over has fewer stores")


@attrs.define
class RacedWords:
    """A slot whose owner makes some stores before each look of a reader."""

    words: memoryview
    stores: Iterator[Store]
    turns: Iterator[int]

    def __getitem__(self, index: int | slice) -> object:
        store(self.words, self.stores, next(self.turns, 0))
        return self.words[index]


LOOKS, STORES = 6, 60  # of a reader; more than a take-over has


@given(st.lists(st.integers(0, STORES), max_size=LOOKS))
def test_a_reader_between_stores_finds_each_number_under_its_name(turns: list[int]) -> None:
    seen = raced_sum(turns, LAYOUT)
    assert seen[DONE] in (3, 4)
    assert seen[ACTIVE] in (0, 2, 5)
    assert seen[COUNTER, "new"] in (0, 4)
    assert set(seen) <= {DONE, ACTIVE, (COUNTER, "new")}


def test_a_reader_never_sees_what_replaces_its_layout() -> None:
    for look in range(LOOKS):
        for stored in range(STORES):
            assert raced_sum([0] * look + [stored], OTHER_LAYOUT) in ({DONE: 3, ACTIVE: 5}, {})


def raced_sum(turns: list[int], layout: int) -> Counter[Name]:
    """What a reader of this layout sees while an owner takes over a slot that had it."""
    words = make_words()
    open_slot(words, {DONE: 3, ACTIVE: 5}, layout)
    successor = CounterSlot(words, LAYOUT)
    stores = successor.begin(1, {(COUNTER, "new"): 4, DONE: 1, ACTIVE: 2})
    raced: Any = RacedWords(words, stores, iter(turns))
    return sum_slots([raced], layout)


@attrs.frozen
class Step:
    """One life counts on; `dies_after` stores it is killed, if it makes so many."""

    place: int
    added: dict[Name, int]
    dies_after: int | None


STEPS = st.lists(
    st.builds(
        Step,
        place=st.integers(0, 1),
        added=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**40)),
        dies_after=st.none() | st.integers(0, 40),
    ),
    max_size=30,
)


@given(STEPS)
def test_sums_only_grow_and_miss_what_the_killed_had_not_stored(steps: list[Step]) -> None:
    memory = [make_words(), make_words()]
    lives: list[tuple[CounterSlot, Counter[Name]] | None] = [None, None]
    before, counted = Counter[Name](), Counter[Name]()
    lost = Counter[Name]()
    for step in steps:
        words, life = memory[step.place], lives[step.place]
        if life is None:
            slot, own = CounterSlot(words, LAYOUT), Counter[Name](step.added)
            stores = slot.begin(1, own)
        else:
            slot, own = life[0], life[1] + Counter(step.added)
            stores = slot.change(own)
        counted.update(step.added)
        made = store(words, stores, step.dies_after)
        lives[step.place] = (slot, own)
        if made == step.dies_after:  # killed, then retired
            words[OWNER], lives[step.place] = 0, None
            lost.update(step.added)
        total = sum_slots(memory, LAYOUT)
        for name in NAMES:
            if name[0] == COUNTER:
                assert before[name] <= total[name] <= counted[name]
                assert total[name] >= counted[name] - lost[name]
            else:
                living = [each[1] for each in lives if each is not None]
                assert total[name] == sum(own[name] for own in living)
        assert set(total) <= set(NAMES)
        before = total
