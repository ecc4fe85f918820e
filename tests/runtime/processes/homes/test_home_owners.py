"""Homes go from hand to hand once, and never come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.processes.homes.home_owners import GUEST_DEATHS_MAX, HOMES_MAX, HomeOwners


def test_a_home_goes_to_a_rank_that_is_left_and_never_back() -> None:
    owners = HomeOwners(3)
    assert [owners.handle_starting(rank) for rank in range(3)] == [0, 1, 2]
    assert owners.handle_given_up(1, [2, 0]) == (2, [])
    assert (owners.host(1), owners.guests(2), owners.own(1)) == (2, [1], None)
    assert owners.handle_starting(1) == 3, "revived, it has a fresh one"
    assert (owners.host(3), owners.host(1), owners.homes) == (1, 2, 4)


def test_the_one_with_fewest_guests_gets_it() -> None:
    owners = HomeOwners(4)
    assert owners.handle_given_up(0, [1, 2, 3]) == (1, [])
    assert owners.handle_given_up(3, [1, 2]) == (2, [])


def test_what_was_given_away_once_is_lost_with_its_host_and_the_host_is_not() -> None:
    owners = HomeOwners(3)
    owners.handle_given_up(0, [1, 2])
    assert owners.handle_given_up(1, [2]) == (2, [0])
    assert (owners.lost(), owners.guests(2), owners.host(0)) == ([0], [1], None)


def test_without_another_rank_its_home_stays_its_own() -> None:
    owners = HomeOwners(1)
    assert owners.handle_given_up(0, []) == (None, [])
    assert owners.handle_starting(0) == 0


def test_two_lives_that_die_as_they_adopt_it_are_enough() -> None:
    owners = HomeOwners(2)
    owners.handle_given_up(0, [1])
    assert owners.handle_gone(1, is_own_fault=True) == [], "it was not asked yet"
    for _ in range(3):  # those that have it may die as often as they like
        owners.handle_begun(0)
        assert owners.hosted(1) == []
        assert owners.handle_hosted(1, 0)
        assert owners.hosted(1) == [0]
        assert owners.handle_gone(1, is_own_fault=True) == []
    for _ in range(3):  # and those that are killed from outside
        owners.handle_begun(0)
        assert owners.begun(1) == [0]
        assert owners.handle_gone(1, is_own_fault=False) == owners.begun(1) == []
    for _ in range(GUEST_DEATHS_MAX - 1):
        owners.handle_begun(0)
        assert owners.handle_gone(1, is_own_fault=True) == []
    owners.handle_begun(0)
    assert owners.handle_gone(1, is_own_fault=True) == [0]
    assert owners.lost() == [0]


def test_what_another_says_of_a_home_is_ignored() -> None:
    owners = HomeOwners(3)
    owners.handle_given_up(0, [1, 2])
    assert not owners.handle_hosted(2, 0)
    assert not owners.handle_hosted(1, 1)
    assert owners.hosted(1) == []


def test_those_of_a_server_before_go_on_beside_those_of_ranks() -> None:
    owners = HomeOwners(2)
    owners.handle_left([5, 2])
    assert (owners.guests(0), owners.guests(1)) == ([2], [5])
    owners.handle_given_up(0, [1])
    assert owners.handle_starting(0) == 6


def test_when_numbers_have_run_out_there_is_none() -> None:
    owners = HomeOwners(2)
    owners.handle_left([HOMES_MAX - 1])
    owners.handle_given_up(0, [1])
    assert owners.handle_starting(0) is None
    assert owners.handle_starting(1) == 1


@pytest.mark.parametrize("count", [1, 2, 5])
@given(data=st.data())
def test_whatever_comes_each_home_has_one_place(count: int, data: st.DataObject) -> None:
    owners, failed = HomeOwners(count), set[int]()
    ranks, acts = st.integers(0, count - 1), st.sampled_from(["fail", "start", "begin", "gone"])
    for act, rank in data.draw(st.lists(st.tuples(acts, ranks), max_size=40)):
        match act:
            case "fail" if rank not in failed:
                failed.add(rank)
                left = [other for other in range(count) if other not in failed]
                host, _ = owners.handle_given_up(rank, left)
                assert host is None if not left else host in left
            case "start":
                failed.discard(rank)
                home = owners.handle_starting(rank)
                assert home is not None
                assert owners.host(home) == rank
            case "begin" if rank not in failed:
                for home in owners.guests(rank):
                    owners.handle_begun(home)
                    assert owners.host(home) == rank
            case "gone":
                owners.handle_gone(rank, is_own_fault=data.draw(st.booleans()))
                assert owners.hosted(rank) == []
        owners.check_invariants()
        for home in owners.lost():
            assert owners.host(home) is None
