"""Quarantine: one that kills alone is refused after two deaths, company is not enough."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.processes.quarantine import EXPIRY_S, Quarantine

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


def test_past_what_it_was_suspected_of_a_death_alone_is_one_strike() -> None:
    quarantine = Quarantine()
    quarantine.handle_death({POISON: 7, b"x": 1}, 0.0)
    assert quarantine.handle_death({POISON: 8}, 1.0) == []
    assert quarantine.suspects[POISON].position == 8
    assert quarantine.handle_death({POISON: 8}, 1.0) == [POISON]


def test_a_group_that_dies_only_in_company_is_ended_at_the_third_death() -> None:
    quarantine = Quarantine()
    for position in (5, 6):
        assert quarantine.handle_death({b"a": position, b"b": position}, 0.0) == []
    assert sorted(quarantine.handle_death({b"a": 9, b"b": 9, b"c": 1}, 0.0)) == [b"a", b"b"]
    assert set(quarantine.suspects) == {b"c"}


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
    assert left == {POISON: 7, b"x": 0, b"y": 0}
    assert not quarantine.handle_passed({b"x": 9, b"y": 5}, 2.0), "nothing is news in it"
    assert quarantine.handle_death({b"x": 5}, 3.0) == [], "what it was suspected of was not so"
    assert quarantine.suspects[b"x"].position == 5


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
    assert sorted(quarantine.handle_death(group, 2.0)) == [b"a", b"b"]


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
                after = quarantine.suspects[content]
                is_past = suspect.position <= positions.get(content, 0)
                assert after == attrs.evolve(suspect, position=0 if is_past else suspect.position)
            continue
        refused = quarantine.handle_death(positions, now)
        quarantine.check_invariants()
        assert set(refused) <= set(positions)
        assert set(positions) <= set(quarantine.refused) | set(quarantine.suspects)
        assert all(content in quarantine.refused for content in refused)
