"""Faults of hosts and of the links between them, as a plan of a seed.

Sans-IO: `host_campaign` makes them. Kinds are dealt like those of one machine (`fault_plan`); a
fault's moment is a number of tokens that every stream has seen.
"""

import enum
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from ..checkers import POISON_DEATHS_MAX

# A link that is cut for so short is not noticed; a host that is silent for so long is not lost yet;
# and for so long it is (the lease is 3 s).
BLINK_S, SHORT_S, LONG_S = 0.5, 2.0, 6.0
# Links are bad for so long, where that may cost no host.
BAD_S = 4.0
TOKENS = (1, 5, 20, 60)


class Ways(enum.Enum):
    """Which ways of the link of a host and the head are changed."""

    NONE = enum.auto()
    BOTH = enum.auto()
    FROM_HOST = enum.auto()
    TO_HOST = enum.auto()


class Cost(enum.Enum):
    """Most that a fault may cost: which engines have another life afterwards."""

    NOTHING = enum.auto()
    ENGINE = enum.auto()
    HOST = enum.auto()
    ALL = enum.auto()
    # Of engines on whichever machine: two.
    LIVES = enum.auto()


@attrs.frozen
class Effect:
    """How a kind of fault is made, and what it costs."""

    cost: Cost
    ways: Ways = Ways.NONE
    seconds: float = 0.0
    changes: Mapping[str, Any] = attrs.field(factory=dict)


NOTHING_PASSES = {"is_cut": True}


class HostFaultKind(enum.StrEnum):
    """Kind of fault: its name for people."""

    effect: Effect

    def __new__(cls, text: str, effect: Effect) -> "HostFaultKind":
        """A string, as of any such enum."""
        made = str.__new__(cls, text)
        made._value_, made.effect = text, effect
        return made

    KILL_WORKER = "kill worker of a host", Effect(Cost.NOTHING)
    KILL_ENGINE = "kill engine of a host", Effect(Cost.ENGINE)
    HANG_ENGINE = "hang engine of a host", Effect(Cost.ENGINE)
    KILL_HOST = "kill host process", Effect(Cost.HOST)
    HOST_OFF = "host off", Effect(Cost.HOST)
    HOST_OFF_WITH_FRONTEND = "host off with frontend", Effect(Cost.HOST)
    LEAVE = "host leaves", Effect(Cost.HOST)
    STOP_HOST = "stop host process", Effect(Cost.HOST, seconds=LONG_S)
    BLINK = "cut of 0.5 s", Effect(Cost.NOTHING, Ways.BOTH, BLINK_S, NOTHING_PASSES)
    SHORT_CUT = "cut of 2 s", Effect(Cost.NOTHING, Ways.BOTH, SHORT_S, NOTHING_PASSES)
    CUT = "cut of 6 s", Effect(Cost.HOST, Ways.BOTH, LONG_S, NOTHING_PASSES)
    CUT_FROM_HOST = "cut from host", Effect(Cost.HOST, Ways.FROM_HOST, LONG_S, NOTHING_PASSES)
    CUT_TO_HOST = "cut to host", Effect(Cost.HOST, Ways.TO_HOST, LONG_S, NOTHING_PASSES)
    LOSS = "loss", Effect(Cost.NOTHING, Ways.BOTH, BAD_S, {"loss": 0.05})
    DELAY = "delay", Effect(Cost.NOTHING, Ways.BOTH, BAD_S, {"delay_s": 0.015, "jitter_s": 0.05})
    STRANGERS = "strangers", Effect(Cost.NOTHING, seconds=BAD_S)
    KILL_ROOT = "kill root", Effect(Cost.ALL)
    POISON = "poison", Effect(Cost.LIVES)
    RATE = "rate", Effect(Cost.NOTHING, Ways.BOTH, BAD_S, {"bytes_per_s": 125_000.0})


@attrs.frozen(kw_only=True)
class HostFault:
    """One fault, made when every stream has shown `token` tokens."""

    number: int
    kind: HostFaultKind
    host: int
    token: int


def make_host_plan(
    seed: int,
    count: int,
    hosts: Sequence[int],
    kinds: Sequence[HostFaultKind] = tuple(HostFaultKind),
) -> list[HostFault]:
    """The faults of this seed, in order. A longer plan begins as a shorter one does."""
    return list(_faults(random.Random(f"hosts/{seed}"), count, hosts, kinds))


def make_upgrade_plan(hosts: Sequence[int]) -> list[HostFault]:
    """Every host leaves once, one after the other."""
    return [
        HostFault(number=number, kind=HostFaultKind.LEAVE, host=host, token=20)
        for number, host in enumerate(hosts)
    ]


def _faults(
    chance: random.Random, count: int, hosts: Sequence[int], kinds: Sequence[HostFaultKind]
) -> Iterator[HostFault]:
    deck: list[HostFaultKind] = []
    for number in range(count):
        if not deck:
            deck = list(kinds)
            chance.shuffle(deck)
        host, token = chance.choice(hosts), chance.choice(TOKENS)
        yield HostFault(number=number, kind=deck.pop(), host=host, token=token)


def judge_epochs_of_hosts(
    fault: HostFault, ranks: frozenset[int], before: Mapping[int, int], after: Mapping[int, int]
) -> list[str]:
    """What is wrong with {rank: epoch} before and after, where `ranks` are those of its host."""
    cost = fault.kind.effect.cost
    ranks = frozenset(before) if cost is Cost.ALL else ranks
    changed = {rank for rank in before if after.get(rank) != before[rank]}
    others = changed - (set(before) if cost is Cost.LIVES else ranks)
    wrong = [f"engine {rank} of another place is another now" for rank in others]
    if after.keys() != before.keys():
        wrong.append(f"engines {sorted(before)} are {sorted(after)} now")
    if cost is Cost.NOTHING and changed:
        wrong.append(f"engines {sorted(changed)} are others, though their host was only silent")
    if cost is Cost.ENGINE and len(changed) != 1:
        wrong.append(f"engines {sorted(changed)} are others, one was killed")
    if cost is Cost.LIVES and len(changed) > POISON_DEATHS_MAX:
        wrong.append(f"engines {sorted(changed)} are others, for one request")
    if cost in (Cost.HOST, Cost.ALL) and changed != ranks:
        wrong.append(
            f"engines {sorted(ranks - changed)} are listed again, though their host was lost"
        )
    wrong += [
        f"engine {rank} has epoch {after[rank]} after {before[rank]}"
        for rank in changed & after.keys()
        if after[rank] < before[rank]
    ]
    return wrong


def judge_times_lost(
    fault: HostFault, name: str, before: Mapping[str, int], after: Mapping[str, int]
) -> list[str]:
    """What is wrong with {host: how often it was lost} before and after; `name` is its host's."""
    is_lost = fault.kind.effect.cost is Cost.HOST and fault.kind is not HostFaultKind.LEAVE
    others = {host: count for host, count in after.items() if host != name}
    wrong = [
        f"host {host} was lost {count} times, not {before.get(host)}"
        for host, count in others.items()
        if count != before.get(host)
    ]
    if is_lost != (after.get(name, 0) > before.get(name, 0)):
        wrong.append(f"host {name} was lost {after.get(name)} times after {before.get(name)}")
    return wrong
