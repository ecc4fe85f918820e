"""Plan of kills at random: which tiers die together, and when. A pure function of its seed.

Sans-IO. Unlike the faults of `fault_plan` these do not wait for each other: the next one comes half
a second later on average, whatever is being restarted. A kill names tiers and a draw for each;
which process that is turns on who is alive by then.
"""

import enum
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import attrs

# Between two moments: half a second on average, as deaths that know nothing of each other come.
PERIOD_S, PERIOD_MAX_S = 0.5, 2.5
# How often so many processes die in one moment.
AT_ONCE = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5)
# In the first half of a plan one engine and one frontend are left alone, so that there is something
# to measure the growth of; in the other nothing is.
SPARED_RANK = 0


class Tier(enum.StrEnum):
    """Whose process it is."""

    WORKER = "worker"
    ENGINE = "engine"
    FRONTEND = "frontend"
    SPARE_WORKER = "spare worker"
    SPARE_ENGINE = "spare engine"
    SPARE_FRONTEND = "spare frontend"
    FORK_SERVER = "fork server"


# Spares die less often: they serve no client, and a machine that cannot keep one is left alone for
# a while that doubles each time.
_CHANCES = {
    Tier.WORKER: 60,
    Tier.ENGINE: 45,
    Tier.FRONTEND: 45,
    Tier.SPARE_WORKER: 2,
    Tier.SPARE_ENGINE: 1,
    Tier.SPARE_FRONTEND: 1,
    Tier.FORK_SERVER: 1,
}
SERVING = (Tier.WORKER, Tier.ENGINE, Tier.FRONTEND)
LATER = "kill later"


@attrs.frozen(kw_only=True)
class Kill:
    """What dies in one moment, `wait_s` after the one before; `draws` choose among equals.

    The engine and the frontend of rank `spared` are left alone, where there is more than one.
    """

    number: int
    tiers: tuple[Tier, ...]
    draws: tuple[float, ...]
    wait_s: float
    spared: int | None = None
    # Made up of what others left.
    is_late: bool = False

    @property
    def kind(self) -> str:
        """As a row of the report."""
        if self.is_late:
            return LATER
        if len(self.tiers) > 1:
            return f"kill {len(self.tiers)} at once"
        return f"kill {self.tiers[0]}"


def make_kills(seed: int, count: int, *, ranks: int) -> list[Kill]:
    """The moments of this seed in which `count` processes die, or one or two more."""
    chance = random.Random(f"kills/{seed}")
    kills: list[Kill] = []
    total = 0
    while total < count:
        has_veterans = ranks > 1 and 2 * total < count
        there = dict.fromkeys(Tier, ranks) | {Tier.SPARE_ENGINE: 1, Tier.SPARE_FRONTEND: 1}
        if has_veterans:
            there |= {Tier.ENGINE: ranks - 1, Tier.FRONTEND: ranks - 1}
        size = chance.choice(AT_ONCE)
        tiers = chance.choices(list(_CHANCES), list(_CHANCES.values()), k=size)
        while any(tiers.count(tier) > there[tier] for tier in tiers):
            tiers = chance.choices(list(_CHANCES), list(_CHANCES.values()), k=size)
        kill = Kill(
            number=len(kills),
            tiers=tuple(sorted(tiers)),
            draws=tuple(chance.random() for _ in tiers),
            wait_s=min(chance.expovariate(1 / PERIOD_S), PERIOD_MAX_S),
            spared=SPARED_RANK if has_veterans else None,
        )
        kills.append(kill)
        total += len(tiers)
    return kills


def tier_of(place: str) -> Tier | None:
    """Of a process by its place in the tree; None of the root."""
    name = place.rpartition("/")[2].rpartition(" ")[0]
    if place.startswith(("spare engine", "spare frontend")) and "/" in place:
        name = Tier.SPARE_WORKER  # that of a spare waits as well
    return Tier(name) if name in list(Tier) else None


def victims_of(kill: Kill, places: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """Who dies, of those that are there; fewer than the kill's tiers where there are not enough."""
    found: list[str] = []
    for tier, draw in zip(kill.tiers, kill.draws, strict=True):
        candidates = [
            place
            for place in sorted(places)
            if tier_of(place) is tier and place not in (*found, *taken)
            if not is_spared(place, kill.spared)
        ]
        if candidates:
            found.append(candidates[int(draw * len(candidates))])
    return found


def rest_of(kill: Kill, victims: Sequence[str]) -> list[Kill]:
    """What it has not found: nothing, or a kill of that."""
    found = Counter(map(tier_of, victims))
    rest: list[tuple[Tier, float]] = []
    for tier, draw in zip(kill.tiers, kill.draws, strict=True):
        if found[tier]:
            found[tier] -= 1
        else:
            rest.append((tier, draw))
    tiers, draws = zip(*rest, strict=True) if rest else ((), ())
    return [attrs.evolve(kill, tiers=tiers, draws=draws)] if rest else []


def joined(kills: Sequence[Kill]) -> tuple[Kill, list[Kill]]:
    """One moment with one of each tier of all these, and what is left; there is at least one.

    No more: of some spares there is one at a time.
    """
    draws: dict[Tier, float] = {}
    left: list[Kill] = []
    for kill in kills:
        for tier, draw in zip(kill.tiers, kill.draws, strict=True):
            if tier in draws:
                left.append(attrs.evolve(kill, tiers=(tier,), draws=(draw,)))
            else:
                draws[tier] = draw
    tiers, all_draws = tuple(draws), tuple(draws.values())
    return attrs.evolve(kills[0], tiers=tiers, draws=all_draws, is_late=True), left


def is_spared(place: str, rank: int | None) -> bool:
    """Whether this kill leaves it alone."""
    return place in (f"engine {rank}", f"frontend {rank}")


def count_by_kind(kills: Sequence[Kill]) -> Mapping[str, int]:
    """{row of the report: moments}, in the order of the tiers, several at once last."""
    found: dict[str, int] = {}
    for kill in sorted(kills, key=lambda each: (len(each.tiers), each.kind)):
        found[kill.kind] = found.get(kill.kind, 0) + 1
    return found
