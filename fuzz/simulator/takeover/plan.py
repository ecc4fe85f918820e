"""What happens in a simulation of takeovers: clients, and deaths of the frontend, from a seed.

Pure. A plan is any list of these events, so that one that fails can be shrunk.
"""

import enum
from random import Random

import attrs

# Deaths in a row, each right after a takeover, that no connection pays for: see `LIVES_MAX`.
QUICK_DEATHS_MAX = 2
# A process that lives so long had no part in the death before it: see `TRIAL_S`.
TRIED_S = 1.5
# A process that reads a fatal request is dead so soon, and all that one may have: no client comes
# before.
FATAL_S, FATAL_OVER_S = 0.05, 1.0
# More than there are connections; and so few that some connections have none.
SLOTS_MANY, SLOTS_FEW = 16, (1, 2)
# Most effects of a life are among its first so many.
EFFECTS_FEW, EFFECTS_MANY = 60, 900


class Kind(enum.StrEnum):
    """What a client does on its connection."""

    RESPONSES = "event stream of a response"
    CHAT = "event stream of a chat"
    WHOLE = "whole answers"
    PIECES = "request in pieces"
    PIPELINE = "pipelined requests"
    LARGE = "large bodies"
    LANES = "lanes"
    CREDIT = "lanes with credit"
    STUCK = "client that reads nothing"
    FATAL = "request that ends its process"


_DRAWN = tuple(kind for kind in Kind if kind is not Kind.FATAL)


@attrs.frozen(kw_only=True)
class Surroundings:
    """Of the whole simulation; `seed` decides what is not drawn here."""

    seed: int = 0
    window_tokens: int = 256
    # Connections beyond these end with their process.
    slots: int = SLOTS_MANY


@attrs.frozen(kw_only=True)
class Talk:
    """One client and its connection."""

    name: str
    kind: Kind
    seed: int
    tokens: int
    at_s: float = 0.0
    # Between two reads.
    pause_s: float = 0.0
    # What the kernel takes of a write that the client has not acknowledged.
    buffer_bytes: int = 2**18
    read_bytes: int = 2**16
    # What is sent is cut into pieces of this size, with pauses.
    piece_bytes: int = 2**16


@attrs.frozen(kw_only=True)
class Death:
    """The present life dies at this effect, counted when it has served for so long."""

    effects: int
    after_s: float = 0.0
    # Half of the store is made at which it dies.
    is_torn: bool = False


Event = Surroundings | Talk | Death


def draw(chance: Random, count: int) -> list[Event]:
    """Surroundings, then about `count` clients and deaths."""
    deaths = chance.randint(1, QUICK_DEATHS_MAX + 1)
    talks = [_draw_talk(chance, number) for number in range(max(1, count - deaths))]
    setup = Surroundings(seed=chance.randrange(2**32), window_tokens=chance.choice((4, 16, 256)))
    killed = [_draw_death(chance, number) for number in range(deaths)]
    if chance.random() < 0.1:
        fatal = Talk(name="fatal", kind=Kind.FATAL, seed=0, tokens=1)
        return [setup, fatal, *(attrs.evolve(each, at_s=FATAL_OVER_S) for each in talks)]
    if chance.random() < 0.15:
        setup = attrs.evolve(setup, slots=chance.choice(SLOTS_FEW))
    return [setup, *talks, *killed]


def _draw_talk(chance: Random, number: int) -> Talk:
    kind = chance.choice([*_DRAWN, Kind.LANES, Kind.CREDIT])
    pause_s = chance.choice((0.0, 0.0, 0.01))
    return Talk(
        name=f"client-{number}",
        kind=kind,
        seed=chance.randrange(2**31),
        tokens=chance.choice((1, 5, 20, 70)),
        at_s=chance.choice((0.0, 0.0, 0.05)),
        pause_s=pause_s,
        buffer_bytes=chance.choice((300, 2000, 2**14, 2**18)),
        # One that is slower than its pongs may be late is cut off.
        read_bytes=chance.choice((1000, 2**16) if pause_s else (50, 1000, 2**16)),
        piece_bytes=chance.choice((7, 100, 2**16, 2**16)),
    )


def _draw_death(chance: Random, number: int) -> Death:
    is_quick = number < QUICK_DEATHS_MAX
    return Death(
        effects=chance.randrange(chance.choice((EFFECTS_FEW, EFFECTS_FEW, EFFECTS_MANY))),
        after_s=chance.choice((0.0, 0.0, 0.02, TRIED_S)) if is_quick else TRIED_S,
        is_torn=chance.random() < 0.4,
    )
