"""Homes: terms only grow, who stays away is given up once, and what the dead say does nothing."""

import math

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triolet.engine.core.homes import Fenced, Homes

HOME, OTHER = 0, 1


def homes_present(*terms: tuple[int, int]) -> Homes:
    """Each (home, term) is listed and has sent its RESYNC at 0 s."""
    homes = Homes(orphan_s=10.0)
    homes.handle_listed(dict(terms), [], 0.0)
    for home, term in terms:
        assert homes.admits(home, term)
        homes.handle_resync(home)
    assert homes.next_deadline() == math.inf
    return homes


def test_a_link_that_is_down_for_long_gives_its_home_up_once() -> None:
    homes = homes_present((HOME, 1))
    homes.handle_down(HOME, 1, now=1.0)
    homes.handle_down(HOME, 1, now=9.0)  # a repeat does not extend the wait
    assert homes.next_deadline() == 11.0
    assert homes.handle_timeout(10.9) == []
    assert homes.handle_timeout(11.0) == [HOME]
    assert homes.handle_timeout(99.0) == []
    assert homes.next_deadline() == math.inf


def test_a_lower_term_does_nothing_however_late_its_link_comes_up() -> None:
    homes = homes_present((HOME, 1))
    homes.handle_listed({HOME: 5}, [], 1.0)
    assert not homes.admits(HOME, 1), "before the RESYNC of the owner, too"
    homes.handle_resync(HOME)
    assert not homes.handle_owner(HOME, 1, 2.0)
    assert not homes.admits(HOME, 1)
    homes.handle_down(HOME, 1, 3.0)
    assert homes.next_deadline() == math.inf, "its owner is there"
    assert homes.admits(HOME, 5)
    assert homes.fenced == {Fenced.LOWER_TERM: 2}


@pytest.mark.parametrize("awaited", [[], [HOME]])
def test_an_owner_that_was_unlisted_is_never_revived(awaited: list[int]) -> None:
    homes = homes_present((HOME, 3))
    homes.handle_listed({}, awaited, 1.0)
    assert not homes.handle_owner(HOME, 3, 2.0)
    homes.handle_listed({HOME: 3}, [], 3.0)
    assert not homes.admits(HOME, 3)
    assert homes.fenced == {Fenced.UNLISTED: 1}
    assert homes.handle_owner(HOME, 4, 4.0)
    assert homes.admits(HOME, 4)


@attrs.define
class Seen:
    """What the outside knows of one home."""

    # The latest owner and whether it is still listed.
    term: int = 0
    is_listed: bool = False
    # Whether its owner's RESYNC is the last that happened, and since when it is not.
    is_present: bool = False
    since_s: float = 0.0
    # Whether anything may be kept for it.
    is_kept: bool = False


class Lives(RuleBasedStateMachine):
    """A root that lists, links that break, and messages of every life there has been."""

    def __init__(self) -> None:
        super().__init__()
        self.homes = Homes(orphan_s=10.0)
        self.now = 0.0
        self.seen = {home: Seen() for home in (HOME, OTHER)}
        self.last_term = 0

    def give_up(self, homes: list[int]) -> None:
        assert len(set(homes)) == len(homes)
        for home in homes:
            assert self.seen[home].is_kept, "once"
            self.seen[home].is_kept = False
            self.seen[home].is_present = False

    @rule(home=st.sampled_from([HOME, OTHER]))
    def begin(self, home: int) -> None:
        """The root lists another owner."""
        self.last_term += 1
        self.seen[home] = Seen(self.last_term, True, False, self.now, True)
        self.publish([])

    @rule(home=st.sampled_from([HOME, OTHER]), is_awaited=st.booleans())
    def end(self, home: int, is_awaited: bool) -> None:
        """The owner is over."""
        seen = self.seen[home]
        seen.is_listed = False
        if seen.is_present:
            seen.since_s, seen.is_present = self.now, False
        self.publish([home] if is_awaited else [])

    def publish(self, awaited: list[int]) -> None:
        terms = {home: seen.term for home, seen in self.seen.items() if seen.is_listed}
        expected = [
            home
            for home, seen in self.seen.items()
            if seen.is_kept and not (seen.is_listed or home in awaited)
        ]
        given_up = self.homes.handle_listed(terms, awaited, self.now)
        assert sorted(given_up) == expected
        self.give_up(given_up)

    @rule(home=st.sampled_from([HOME, OTHER]), back=st.integers(0, 3))
    def say(self, home: int, back: int) -> None:
        """A RESYNC of the owner, or something of an earlier one."""
        seen, term = self.seen[home], self.seen[home].term - back
        counted = self.homes.fenced.total()
        admitted = self.homes.admits(home, term)
        assert admitted == (seen.is_listed and back == 0)
        assert self.homes.fenced.total() == counted + (not admitted)
        if admitted:
            self.homes.handle_resync(home)
            seen.is_present = seen.is_kept = True

    @rule(home=st.sampled_from([HOME, OTHER]), back=st.integers(0, 3), comes_up=st.booleans())
    def change_link(self, home: int, back: int, comes_up: bool) -> None:
        """A link of some owner is up, which proves nothing, or down."""
        seen, term = self.seen[home], self.seen[home].term - back
        is_owner = seen.is_listed and back == 0
        if comes_up and seen.term > back:
            assert self.homes.handle_owner(home, term, self.now) == is_owner
        elif not comes_up:
            self.homes.handle_down(home, term, self.now)
            if is_owner and (seen.is_present or not seen.is_kept):
                seen.since_s, seen.is_present, seen.is_kept = self.now, False, True

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 9.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [
            home
            for home, seen in self.seen.items()
            if seen.is_kept and not seen.is_present and seen.since_s + 10.0 <= self.now
        ]
        given_up = self.homes.handle_timeout(self.now)
        assert sorted(given_up) == due
        self.give_up(given_up)

    @invariant()
    def deadlines_are_right(self) -> None:
        self.homes.check_invariants()
        away = [
            seen.since_s + 10.0
            for seen in self.seen.values()
            if seen.is_kept and not seen.is_present
        ]
        assert self.homes.next_deadline() == min(away, default=math.inf)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
