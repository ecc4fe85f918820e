"""Quarantine: one that kills alone is refused after two deaths, company is not enough."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.processes.quarantine import (
    EXPIRY_S,
    SAME_PLACE_TOKENS,
    Quarantine,
)

POISON = b"p"
OTHERS = {bytes([number]): 10 + number for number in range(63)}


def test_one_that_dies_in_company_and_then_alone_is_refused() -> None:
    quarantine = Quarantine()
    assert quarantine.handle_death({POISON: 7, **OTHERS}, 0.0) == []
    assert {c: each.position for c, each in quarantine.suspects.items()} == {POISON: 7, **OTHERS}
    assert quarantine.handle_death({POISON: 7}, 1.0) == [POISON]
    assert set(quarantine.refused) == {POISON}
    assert set(quarantine.suspects) == set(OTHERS)
    quarantine.check_invariants()


def test_one_that_was_never_suspected_may_die_alone_once() -> None:
    quarantine = Quarantine()
    assert quarantine.handle_death({POISON: 7}, 0.0) == []
    assert quarantine.handle_death({POISON: 9}, 1.0) == [POISON]


def test_one_that_goes_on_from_a_death_elsewhere_may_be_met_alone_once() -> None:
    quarantine = Quarantine()
    for position in (10, 100):
        assert quarantine.handle_death(dict.fromkeys((b"x", b"y"), position), 0.0) == []
        if position == 10:
            assert quarantine.handle_passed({b"x": 10, b"y": 10}, 1.0)
    assert quarantine.handle_death({b"x": 100}, 2.0) == [], "the third, when it runs alone"
    assert quarantine.handle_death({b"x": 100}, 3.0) == [b"x"], "twice alone is twice alone"


def test_a_death_that_another_was_ended_for_says_nothing_of_its_company() -> None:
    quarantine = Quarantine()
    assert quarantine.handle_death({POISON: 5, b"x": 3}, 0.0) == []
    assert quarantine.handle_death({POISON: 5}, 1.0) == [POISON]
    assert quarantine.handle_death({b"x": 6, b"y": 6}, 2.0) == []
    assert quarantine.handle_death({b"x": 6}, 3.0) == [b"x"], "two deaths are its own"


def test_past_what_it_was_suspected_of_a_death_alone_is_one_strike() -> None:
    quarantine = Quarantine()
    quarantine.handle_death({POISON: 7, b"x": 1}, 0.0)
    assert quarantine.handle_death({POISON: 8}, 1.0) == []
    assert quarantine.suspects[POISON].position == 8
    assert quarantine.handle_death({POISON: 8}, 1.0) == [POISON]


def test_a_group_that_dies_at_one_place_is_ended_at_the_third_death() -> None:
    quarantine = Quarantine()
    # One token apart: which of two steps in flight it was is not known.
    for position in (5, 6):
        assert quarantine.handle_death({b"a": position, b"b": position}, 0.0) == []
    assert quarantine.handle_death({b"a": 5, b"b": 6, b"c": 1}, 0.0) == [b"a", b"b"]
    assert set(quarantine.suspects) == {b"c"}


def test_deaths_at_three_places_refuse_nobody() -> None:
    quarantine = Quarantine()
    streams = [bytes([number]) for number in range(6)]
    # Thirty steps a second; the worker is ended at 1, 4 and 7 s.
    for now in (1.0, 4.0, 7.0):
        position = 10 + int(30 * now)
        assert quarantine.handle_death(dict.fromkeys(streams, position), now) == []
        for stream in streams:
            assert quarantine.handle_passed({stream: position}, now + 1.0)
        assert quarantine.suspects == {}
    assert quarantine.refused == {}


@pytest.mark.parametrize("deaths", [3, 30])
def test_a_stream_that_goes_on_from_each_death_is_never_refused(deaths: int) -> None:
    quarantine, position = Quarantine(), 5
    for now in range(deaths):
        assert quarantine.handle_death({b"a": position, b"b": position}, now) == []
        # As slow as can be: the next death comes with the first step that is not alone, of which
        # there may be two in flight.
        assert quarantine.handle_passed({b"a": position, b"b": position}, now)
        position += 1 + SAME_PLACE_TOKENS


def test_a_prompt_that_three_deaths_meet_in_other_company_is_not_refused() -> None:
    quarantine = Quarantine()
    for other in (b"x", b"y", b"z"):  # a health probe, say: always at its first token
        assert quarantine.handle_death({b"probe": 4, other: 50}, 0.0) == []
        assert quarantine.handle_passed({b"probe": 4, other: 50}, 1.0)
    assert (quarantine.suspects, quarantine.refused) == ({}, {})


def test_all_is_forgotten_in_time() -> None:
    quarantine = Quarantine()
    quarantine.handle_death({POISON: 7, b"x": 1}, 0.0)
    quarantine.handle_death({POISON: 7}, 1.0)
    quarantine.handle_timeout(EXPIRY_S)
    assert (quarantine.suspects, set(quarantine.refused)) == ({}, {POISON})
    quarantine.handle_timeout(EXPIRY_S + 1.0)
    assert quarantine.refused == {}


def test_those_that_pass_alone_need_not_run_alone_any_more() -> None:
    quarantine = Quarantine()
    quarantine.handle_death({POISON: 7, b"x": 5, b"y": 5}, 0.0)
    assert quarantine.handle_passed({b"x": 9, b"y": 5, b"unknown": 5}, 1.0)
    left = {content: each.position for content, each in quarantine.suspects.items()}
    assert left == {POISON: 7}, "they are acquitted"
    assert not quarantine.handle_passed({b"x": 9, b"y": 5}, 2.0), "nothing is news in it"
    assert quarantine.handle_death({b"x": 5}, 3.0) == [], "what it was suspected of was not so"
    assert quarantine.suspects[b"x"].position == 5


def test_a_strike_outlives_what_is_passed_alone() -> None:
    quarantine = Quarantine()
    assert quarantine.handle_death({b"x": 5}, 0.0) == []
    assert quarantine.handle_passed({b"x": 5}, 1.0)
    assert quarantine.suspects[b"x"].position == 0, "it runs in company"
    assert quarantine.handle_death({b"x": 9}, 2.0) == [b"x"]


def test_what_passed_before_a_later_position_became_suspect_clears_nothing() -> None:
    quarantine = Quarantine()
    quarantine.handle_death({b"x": 5, b"y": 5}, 0.0)
    quarantine.handle_death({b"x": 9, b"y": 9}, 1.0)
    assert not quarantine.handle_passed({b"x": 8}, 2.0)
    assert quarantine.suspects[b"x"].position == 9


def test_a_group_that_passes_alone_and_dies_in_company_is_ended_all_the_same() -> None:
    quarantine = Quarantine()
    group = {b"a": 5, b"b": 5}
    for now in (0.0, 1.0):
        assert quarantine.handle_death(group, now) == []
        assert quarantine.handle_passed(group, now)
        assert quarantine.suspects == {}
    assert quarantine.handle_death(group, 2.0) == [b"a", b"b"]


def test_that_it_passed_does_not_prolong_what_is_remembered() -> None:
    quarantine = Quarantine()
    quarantine.handle_death({b"x": 5, b"y": 5}, 0.0)
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
    for is_death, positions, passed_s in events:
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
                assert (after is None) == (is_past and not suspect.strikes)
                place = 0 if is_past else suspect.position
                assert after is None or after == attrs.evolve(suspect, position=place)
            continue
        refused = quarantine.handle_death(positions, now)
        quarantine.check_invariants()
        assert set(refused) <= set(positions)
        assert set(positions) <= set(quarantine.refused) | set(quarantine.suspects)
        assert all(content in quarantine.refused for content in refused)
