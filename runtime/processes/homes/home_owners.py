"""Owners of homes: which frontend of a server has which home, its own or one that was left to it.

A *home* is what ids of responses, claims of idempotency keys, engines and a journal know a frontend
by. Each rank begins with the home of its own number. When a rank is given up, the root gives its
home to a rank that is left, which goes on with it beside its own. A home that was given away never
comes back: a rank that is revived gets a fresh one, with the next number.

    OWN ---- rank given up ----> GUEST of another rank ---- that one given up, or ----> LOST
     |                                                      two of its lives died
     +------ no journal, or no rank left ---------------------------------------------> LOST

A home goes from hand to hand once only: what is in it may be what its frontends died of. A life
that dies after it has gone on with all of it is no sign of that, nor is one that is killed from
outside, and the next one of its rank does the same; one that dies before of itself is counted.

Sans-IO: ranks that come and go in, homes out.
"""

from collections.abc import Collection

import attrs

# As of one stream, see `frontend.adoption`: lives that died of themselves as they adopted a home.
GUEST_DEATHS_MAX = 2
# What two hex digits of an id can name.
HOMES_MAX = 256


@attrs.define(eq=False)
class _Guest:
    host: int
    # Whether the present life of its host has begun with it, and has it.
    is_begun: bool = False
    is_hosted: bool = False
    deaths: int = 0


@attrs.define(eq=False)
class HomeOwners:
    """All homes of one server with so many frontends."""

    count: int
    # How many homes there were so far; they are numbered from 0.
    homes: int = attrs.field(init=False)
    # {rank: the home of its own}; none if that was given away.
    _own: dict[int, int] = attrs.field(init=False)
    # {home: where it is}, of those that were given away and are not lost.
    _guests: dict[int, _Guest] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.homes = self.count
        self._own = {rank: rank for rank in range(self.count)}

    def handle_left(self, homes: Collection[int]) -> None:
        """A server before this one left journals of these beside those of its ranks."""
        for home in sorted(homes):
            self._guests[home] = _Guest(home % self.count)
            self.homes = max(self.homes, home + 1)

    def handle_starting(self, rank: int) -> int | None:
        """A process of this rank is about to be spawned: its home; None if there are no more."""
        if rank not in self._own:
            if self.homes == HOMES_MAX:
                return None
            self._own[rank] = self.homes
            self.homes += 1
        return self._own[rank]

    def own(self, rank: int) -> int | None:
        """The home of a rank, if it has one."""
        return self._own.get(rank)

    def host(self, home: int) -> int | None:
        """The rank that has this home; None if it is lost."""
        if home in self._guests:
            return self._guests[home].host
        return next((rank for rank, own in self._own.items() if own == home), None)

    def guests(self, rank: int) -> list[int]:
        """Homes beside its own that this rank is to go on with, or does."""
        return [home for home, guest in self._guests.items() if guest.host == rank]

    def begun(self, rank: int) -> list[int]:
        """Those of them that its present process was asked to go on with."""
        return [home for home in self.guests(rank) if self._guests[home].is_begun]

    def hosted(self, rank: int) -> list[int]:
        """Those of them that its present process has."""
        return [home for home in self.guests(rank) if self._guests[home].is_hosted]

    def lost(self) -> list[int]:
        """Homes that no frontend will have any more."""
        known = self._guests.keys() | self._own.values()
        return [home for home in range(self.homes) if home not in known]

    def handle_given_up(self, rank: int, left: Collection[int]) -> tuple[int | None, list[int]]:
        """A rank is given up. Returns the rank among those `left`, in the order of preference, that
        gets its home, and the homes that are lost by it.

        Without any its own stays its own, for the time when it is revived, but empty.
        """
        lost = self.guests(rank)
        for home in lost:
            del self._guests[home]
        hosts = sorted(left, key=lambda other: len(self.guests(other)))
        if not hosts or rank not in self._own:
            return None, lost
        self._guests[self._own.pop(rank)] = _Guest(hosts[0])
        return hosts[0], lost

    def handle_begun(self, home: int) -> None:
        """The present process of its host was asked to go on with it. Nothing if it is lost."""
        if home in self._guests:
            self._guests[home].is_begun = True

    def handle_hosted(self, rank: int, home: int) -> bool:
        """The process of this rank has gone on with it; False if it is not there (any more)."""
        guest = self._guests.get(home)
        if guest is None or guest.host != rank:
            return False
        guest.is_hosted = True
        return True

    def handle_gone(self, rank: int, *, is_own_fault: bool) -> list[int]:
        """The process of this rank has ended. Returns the homes that are lost by it."""
        lost = []
        for home in self.guests(rank):
            guest = self._guests[home]
            guest.deaths += is_own_fault and guest.is_begun and not guest.is_hosted
            guest.is_begun = guest.is_hosted = False
            if guest.deaths >= GUEST_DEATHS_MAX:
                del self._guests[home]
                lost.append(home)
        return lost

    def check_invariants(self) -> None:
        """Each home has one place at most, and each rank one home of its own."""
        own = list(self._own.values())
        assert len(set(own)) == len(own)
        assert not self._guests.keys() & set(own)
        assert all(0 <= home < self.homes for home in [*own, *self._guests])
        assert all(0 <= guest.host < self.count for guest in self._guests.values())
