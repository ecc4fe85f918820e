"""Quarantine: one that kills alone is refused after two deaths, company is not enough."""

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


DEATHS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 9), max_size=4),
        st.floats(0.0, EXPIRY_S / 2),
    ),
    max_size=30,
)


@given(DEATHS)
def test_whatever_dies(deaths: list[tuple[dict[bytes, int], float]]) -> None:
    quarantine, now = Quarantine(), 0.0
    for positions, passed_s in deaths:
        now += passed_s
        refused = quarantine.handle_death(positions, now)
        quarantine.check_invariants()
        assert set(refused) <= set(positions)
        assert set(positions) <= set(quarantine.refused) | set(quarantine.suspects)
        assert all(content in quarantine.refused for content in refused)
