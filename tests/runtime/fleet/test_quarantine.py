"""Quarantine: one that kills alone is refused after two deaths, company is not enough."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.fleet.quarantine import (
    EXPIRY_S,
    SAME_PLACE_TOKENS,
    Quarantine,
)

POISON = b"p"
OTHERS = {bytes([number]): 10 + number for number in range(63)}


def die(quarantine: Quarantine, positions: dict[bytes, int], now: float) -> list[bytes]:
    """Whom it refuses for a death of which nobody asks whose it was."""
    return quarantine.handle_death(positions, now, life=0).refused


def test_one_that_dies_in_company_and_then_alone_is_refused() -> None:
    quarantine = Quarantine()
    assert die(quarantine, {POISON: 7, **OTHERS}, 0.0) == []
    assert {c: each.position for c, each in quarantine.suspects.items()} == {POISON: 7, **OTHERS}
    assert die(quarantine, {POISON: 7}, 1.0) == [POISON]
    assert set(quarantine.refused) == {POISON}
    assert set(quarantine.suspects) == set(OTHERS)
    quarantine.check_invariants()


def test_one_that_was_never_suspected_may_die_alone_once() -> None:
    quarantine = Quarantine()
    assert die(quarantine, {POISON: 7}, 0.0) == []
    assert die(quarantine, {POISON: 9}, 1.0) == [POISON]


def test_one_that_goes_on_from_a_death_elsewhere_may_be_met_alone_once() -> None:
    quarantine = Quarantine()
    for position in (10, 100):
        assert die(quarantine, dict.fromkeys((b"x", b"y"), position), 0.0) == []
        if position == 10:
            assert quarantine.handle_passed({b"x": 10, b"y": 10}, 1.0)
    assert die(quarantine, {b"x": 100}, 2.0) == [], "the third, when it runs alone"
    assert die(quarantine, {b"x": 100}, 3.0) == [b"x"], "twice alone is twice alone"


def test_a_death_that_another_was_ended_for_says_nothing_of_its_company() -> None:
    quarantine = Quarantine()
    assert die(quarantine, {POISON: 5, b"x": 3}, 0.0) == []
    assert die(quarantine, {POISON: 5}, 1.0) == [POISON]
    assert die(quarantine, {b"x": 6, b"y": 6}, 2.0) == []
    assert die(quarantine, {b"x": 6}, 3.0) == [b"x"], "two deaths are its own"


def test_past_what_it_was_suspected_of_a_death_alone_is_one_strike() -> None:
    quarantine = Quarantine()
    die(quarantine, {POISON: 7, b"x": 1}, 0.0)
    assert die(quarantine, {POISON: 8}, 1.0) == []
    assert quarantine.suspects[POISON].position == 8
    assert die(quarantine, {POISON: 8}, 1.0) == [POISON]


def test_a_group_that_dies_at_one_place_is_ended_at_the_third_death() -> None:
    quarantine = Quarantine()
    # One token apart: which of two steps in flight it was is not known.
    for position in (5, 6):
        assert die(quarantine, {b"a": position, b"b": position}, 0.0) == []
    assert die(quarantine, {b"a": 5, b"b": 6, b"c": 1}, 0.0) == [b"a", b"b"]
    assert set(quarantine.suspects) == {b"c"}


def test_deaths_at_three_places_refuse_nobody() -> None:
    quarantine = Quarantine()
    streams = [bytes([number]) for number in range(6)]
    # Thirty steps a second; the worker is ended at 1, 4 and 7 s.
    for now in (1.0, 4.0, 7.0):
        position = 10 + int(30 * now)
        assert die(quarantine, dict.fromkeys(streams, position), now) == []
        for stream in streams:
            assert quarantine.handle_passed({stream: position}, now + 1.0)
        assert quarantine.suspects == {}
    assert quarantine.refused == {}


@pytest.mark.parametrize("deaths", [3, 30])
def test_a_stream_that_goes_on_from_each_death_is_never_refused(deaths: int) -> None:
    quarantine, position = Quarantine(), 5
    for now in range(deaths):
        assert die(quarantine, {b"a": position, b"b": position}, now) == []
        # As slow as can be: the next death comes with the first step that is not alone, of which
        # there may be two in flight.
        assert quarantine.handle_passed({b"a": position, b"b": position}, now)
        position += 1 + SAME_PLACE_TOKENS


def test_a_prompt_that_three_deaths_meet_in_other_company_is_not_refused() -> None:
    quarantine = Quarantine()
    for other in (b"x", b"y", b"z"):  # a health probe, say: always at its first token
        assert die(quarantine, {b"probe": 4, other: 50}, 0.0) == []
        assert quarantine.handle_passed({b"probe": 4, other: 50}, 1.0)
    assert (quarantine.suspects, quarantine.refused) == ({}, {})


def test_all_is_forgotten_in_time() -> None:
    quarantine = Quarantine()
    die(quarantine, {POISON: 7, b"x": 1}, 0.0)
    die(quarantine, {POISON: 7}, 1.0)
    quarantine.handle_timeout(EXPIRY_S)
    assert (quarantine.suspects, set(quarantine.refused)) == ({}, {POISON})
    quarantine.handle_timeout(EXPIRY_S + 1.0)
    assert quarantine.refused == {}


def test_those_that_pass_alone_need_not_run_alone_any_more() -> None:
    quarantine = Quarantine()
    die(quarantine, {POISON: 7, b"x": 5, b"y": 5}, 0.0)
    assert quarantine.handle_passed({b"x": 9, b"y": 5, b"unknown": 5}, 1.0)
    left = {content: each.position for content, each in quarantine.suspects.items()}
    assert left == {POISON: 7}, "they are acquitted"
    assert not quarantine.handle_passed({b"x": 9, b"y": 5}, 2.0), "nothing is news in it"
    assert die(quarantine, {b"x": 5}, 3.0) == [], "what it was suspected of was not so"
    assert quarantine.suspects[b"x"].position == 5


def test_a_strike_outlives_what_is_passed_alone() -> None:
    quarantine = Quarantine()
    assert die(quarantine, {b"x": 5}, 0.0) == []
    assert quarantine.handle_passed({b"x": 5}, 1.0)
    assert quarantine.suspects[b"x"].position == 0, "it runs in company"
    assert die(quarantine, {b"x": 9}, 2.0) == [b"x"]


def test_what_passed_before_a_later_position_became_suspect_clears_nothing() -> None:
    quarantine = Quarantine()
    die(quarantine, {b"x": 5, b"y": 5}, 0.0)
    die(quarantine, {b"x": 9, b"y": 9}, 1.0)
    assert not quarantine.handle_passed({b"x": 8}, 2.0)
    assert quarantine.suspects[b"x"].position == 9


def test_a_group_that_passes_alone_and_dies_in_company_is_ended_all_the_same() -> None:
    quarantine = Quarantine()
    group = {b"a": 5, b"b": 5}
    for now in (0.0, 1.0):
        assert die(quarantine, group, now) == []
        assert quarantine.handle_passed(group, now)
        assert quarantine.suspects == {}
    assert die(quarantine, group, 2.0) == [b"a", b"b"]


def explained(quarantine: Quarantine, life: int, **positions: int) -> set[int]:
    """The lives of which it is known by the death of this one that a request ended them."""
    by_content = {content.encode(): position for content, position in positions.items()}
    return set(quarantine.handle_death(by_content, 0.0, life).explained)


def test_who_dies_in_company_and_alone_explains_both_deaths() -> None:
    quarantine = Quarantine()
    assert explained(quarantine, 1, p=7, x=30) == set()
    assert explained(quarantine, 2, p=7) == {1, 2}
    assert explained(quarantine, 3, x=50, y=50) == set(), "nobody is ended for it"
    assert explained(quarantine, 4, p=9, z=3) == {4}, "another engine had it still"


def test_who_dies_alone_twice_explains_that_and_no_death_elsewhere() -> None:
    quarantine = Quarantine()
    assert explained(quarantine, 1, x=10, y=10) == set()
    assert quarantine.handle_passed({b"x": 10, b"y": 10}, 0.0)
    assert explained(quarantine, 2, x=100, y=100) == set()
    assert explained(quarantine, 3, x=100) == set()
    assert explained(quarantine, 4, x=100) == {2, 3, 4}


def test_a_prompt_that_is_read_in_larger_pieces_alone_explains_its_death_in_company() -> None:
    quarantine = Quarantine()
    assert explained(quarantine, 1, p=512, x=30) == set()
    assert explained(quarantine, 2, p=2048) == set()
    assert explained(quarantine, 3, p=2048) == {1, 2, 3}


def test_two_in_one_death_explain_it_and_their_own() -> None:
    quarantine = Quarantine()
    assert explained(quarantine, 1, p=7, q=8, x=30) == set()
    assert explained(quarantine, 2, p=7) == {1, 2}
    assert explained(quarantine, 3, q=8) == {3}


def test_a_group_explains_its_three_deaths() -> None:
    quarantine = Quarantine()
    assert explained(quarantine, 1, a=5, b=5) == set()
    assert explained(quarantine, 2, a=50, c=5) == set()
    assert explained(quarantine, 3, a=5, b=5, c=90) == set()
    assert explained(quarantine, 4, a=5, b=5) == {1, 3, 4}


def test_that_it_passed_does_not_prolong_what_is_remembered() -> None:
    quarantine = Quarantine()
    die(quarantine, {b"x": 5, b"y": 5}, 0.0)
    assert quarantine.handle_passed({b"x": 5}, EXPIRY_S - 1.0)
    assert not quarantine.handle_passed({b"y": 5}, EXPIRY_S)
    assert quarantine.suspects == {}


POSITIONS = st.dictionaries(
    st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 9), max_size=4
)
EVENTS = st.lists(
    st.tuples(st.booleans(), POSITIONS, st.floats(0.0, EXPIRY_S / 2)),
    max_size=30,
)


@given(EVENTS)
def test_whatever_dies_and_passes(events: list[tuple[bool, dict[bytes, int], float]]) -> None:
    quarantine, now = Quarantine(), 0.0
    batches: dict[int, set[bytes]] = {}
    for life, (is_death, positions, passed_s) in enumerate(events):
        now += passed_s
        quarantine.handle_timeout(now)
        before = dict(quarantine.suspects)
        if not is_death:
            changed = quarantine.handle_passed(positions, now)
            quarantine.check_invariants()
            assert changed == (quarantine.suspects != before)
            for content, suspect in before.items():
                after = quarantine.suspects.get(content)
                is_past = 0 < suspect.position <= positions.get(content, 0)
                assert (after is None) == (is_past and not suspect.alone)
                cleared = attrs.evolve(suspect, position=0, company=()) if is_past else suspect
                assert after in (None, cleared)
            continue
        found = quarantine.handle_death(positions, now, life)
        refused = found.refused
        quarantine.check_invariants()
        batches[life] = set(positions)
        assert not refused or life in found.explained
        for each in found.explained:
            assert batches[each] & quarantine.refused.keys(), "it had one that is refused"
        assert set(refused) <= set(positions)
        assert set(positions) <= set(quarantine.refused) | set(quarantine.suspects)
        assert all(content in quarantine.refused for content in refused)
