"""Homes of an engine: whose life speaks for each frontend rank, and which ranks stay away.

A *home* is a frontend's rank as an engine sees it, whoever its present life is: requests belong to
homes, so that a successor may go on with them. The root numbers each ownership of a home, its
*term*; of one home terms only grow, and the latest that is listed owns it.

    PRESENT    the owner has said, with the RESYNC that begins its link, what it goes on with
    AWAY       it has not, or not since its link broke; what it had runs on within its credit
    GIVEN_UP   what it had was aborted, and nothing is kept

     owner listed            RESYNC
    --------------> AWAY <----------------> PRESENT
                    ^  |    link down, owner unlisted, later owner listed
      later owner,  |  |
         link down  |  v  away for `orphan_s`; at once where the root awaits no successor
                  GIVEN_UP ---------------> PRESENT
                             RESYNC of an owner that is listed

The time away begins anew with each owner that is listed: it is on its way. One whose link is up and
whose RESYNC has not come (it holds it back while it rebuilds its ledger) is away.

*Fence*: what a lower term says does nothing, nor what an owner says that is not listed any more,
whenever it comes and however late its link came up. Links are made for one term each, and a link's
peer names it: so messages need not, and who owned two homes would have two links.

Sans-IO: lists of the root, ends of links and times in; out come the homes that are given up.
"""

import enum
import math
from collections import Counter
from collections.abc import Container, Mapping

import attrs


class HomeState(enum.Enum):
    """State of a home; the drawing is above."""

    AWAY = "away"
    PRESENT = "present"
    GIVEN_UP = "given up"


class Fenced(enum.StrEnum):
    """Why a message was dropped."""

    LOWER_TERM = "lower_term"  # the home has another owner by now
    UNLISTED = "unlisted"  # its owner is over and has no successor yet


@attrs.define(eq=False)
class _Home:
    # The term of the latest owner that was listed.
    term: int
    # When it was away last.
    since_s: float
    state: HomeState = HomeState.AWAY
    # Whether the root still lists this owner.
    is_listed: bool = True


@attrs.define(eq=False)
class Homes:
    """Homes of one engine: as many as the server has had frontend ranks.

    Terms of owners that were unlisted are kept, as they must not come back.
    """

    orphan_s: float = attrs.field(validator=attrs.validators.gt(0))
    # Messages that were dropped.
    fenced: Counter[Fenced] = attrs.field(factory=Counter, init=False)
    _homes: dict[int, _Home] = attrs.field(factory=dict, init=False)

    def handle_listed(
        self, terms: Mapping[int, int], awaited: Container[int], now: float
    ) -> list[int]:
        """The root's latest list: {home: term of its owner}, and homes that await a successor.

        Returns the homes that are given up by it: in neither.
        """
        for home, term in terms.items():
            self.handle_owner(home, term, now)
        given_up = []
        for home, known in self._homes.items():
            if home in terms:
                continue
            known.is_listed = False
            if home in awaited:
                if known.state is HomeState.PRESENT:
                    known.since_s, known.state = now, HomeState.AWAY
            elif known.state is not HomeState.GIVEN_UP:
                known.state = HomeState.GIVEN_UP
                given_up.append(home)
        return given_up

    def handle_owner(self, home: int, term: int, now: float) -> bool:
        """This term is listed, or its link came up; False if it is fenced, and stays so."""
        known = self._homes.get(home)
        if known is None or term > known.term:
            self._homes[home] = _Home(term, now)
        return self._owned(home, term) is not None

    def handle_resync(self, home: int) -> None:
        """Note the RESYNC of the owner that was just admitted."""
        self._homes[home].state = HomeState.PRESENT

    def handle_down(self, home: int, term: int, now: float) -> None:
        """The owner's link is down; any other does not matter. Repeats do not extend the wait."""
        known = self._owned(home, term)
        if known is not None and known.state is not HomeState.AWAY:
            known.since_s, known.state = now, HomeState.AWAY

    def admits(self, home: int, term: int) -> bool:
        """Whether what this term says counts; a message that does not is counted here."""
        if self._owned(home, term) is not None:
            return True
        known = self._homes.get(home)
        is_lower = known is not None and term < known.term
        self.fenced[Fenced.LOWER_TERM if is_lower else Fenced.UNLISTED] += 1
        return False

    def next_deadline(self) -> float:
        """When `handle_timeout` is due; infinity while none is away."""
        away = (each for each in self._homes.values() if each.state is HomeState.AWAY)
        return min((each.since_s + self.orphan_s for each in away), default=math.inf)

    def handle_timeout(self, now: float) -> list[int]:
        """The homes that are given up now. Harmless when early."""
        due = []
        for home, known in self._homes.items():
            if known.state is HomeState.AWAY and known.since_s + self.orphan_s <= now:
                known.state = HomeState.GIVEN_UP
                due.append(home)
        return due

    def check_invariants(self) -> None:
        """Fails an assertion if a home is present without an owner."""
        for known in self._homes.values():
            assert known.is_listed or known.state is not HomeState.PRESENT

    def _owned(self, home: int, term: int) -> _Home | None:
        """The home, if this term owns it now."""
        known = self._homes.get(home)
        return known if known is not None and known.term == term and known.is_listed else None
