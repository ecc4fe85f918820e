"""Fuzzes both ends of a link over a network that drops, doubles, delays and reorders.

Invariant: within a generation every message arrives once, in order, or the generation ends.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random

import attrs

from ...transports.links.link import Decision, Deliver, Link, Side
from ...transports.links.link_header import FrameKind, Header
from ..doubles.link_pair import LinkPair, MakeLink
from ..fuzzer import Fuzzer

FAULTS = ("drop", "lose all", "double", "reorder", "forge", "break")


@attrs.frozen
class Act:
    """Act on the wire towards `side`, or on that end."""

    what: str
    side: Side
    # Header that somebody else may have sent, for `forge`.
    header: Header | None = None


def draw(chance: Random, count: int) -> list[Act]:
    """Mostly traffic. Each round has some of the faults only: all at once hide each other."""
    faults = [fault for fault in FAULTS if chance.random() < 0.5]
    acts = ["send", "deliver"] * chance.choice((2, 6, 20)) + ["wait", "wait", "fire", *faults]
    return [_draw_act(chance, acts) for _ in range(count)]


def _draw_act(chance: Random, acts: Sequence[str]) -> Act:
    what, side = chance.choice(acts), chance.choice(list(Side))
    if what != "forge":
        return Act(what, side)
    kind = chance.choice(list(FrameKind))
    # A generation that never was, so that no honest payload is meant: 0 is before the first.
    return Act(what, side, Header(kind, 0, chance.randrange(4), chance.randrange(4)))


def check(acts: Sequence[Act], make_link: MakeLink) -> Counter[str]:
    """Let all of it happen, then let the network heal: both ends are up and nothing is missing."""
    pair = LinkPair(make_link=make_link)
    reached: Counter[str] = Counter()
    for act in acts:
        _apply(pair, act)
    pair.settle()
    for link in pair.ends.values():
        reached.update({str(mishap): count for mishap, count in link.mishaps.items()})
    reached["delivered"] = sum(pair.delivered.values())
    return reached


def _apply(pair: LinkPair, act: Act) -> None:
    wire = pair.wires[act.side]
    match act.what:
        case "send":
            pair.send(act.side)
        case "deliver":
            pair.deliver(act.side)
        case "drop" if wire:
            wire.popleft()
        case "lose all":
            wire.clear()
        case "double" if wire:
            wire.appendleft(wire[0])
        case "reorder":
            wire.rotate(-1)
        case "wait":
            pair.now += 0.01
        case "fire":
            pair.fire()
        case "forge":
            assert act.header is not None
            wire.append(act.header)
        case "break":
            pair.break_link(act.side)


class _Twice(Link):
    """Planted: a duplicate is delivered again."""

    def _handle_data(self, header: Header, now: float) -> Sequence[Decision]:
        is_last = header.sequence == self._received
        decisions = super()._handle_data(header, now)
        return (*decisions, Deliver()) if is_last else decisions


class _Gapless(Link):
    """Planted: what was lost on the way is not missed."""

    def _handle_data(self, header: Header, now: float) -> Sequence[Decision]:
        self._received = max(self._received, header.sequence - 1)
        return super()._handle_data(header, now)


class _Timeless(Link):
    """Planted: what comes from an earlier generation is taken for this one's."""

    def handle_header(self, header: Header, now: float) -> Sequence[Decision]:
        if header.kind is FrameKind.DATA and header.generation < self.generation:
            header = attrs.evolve(header, generation=self.generation)
        return super().handle_header(header, now)


class _Deaf(Link):
    """Planted: a lost tail is not asked for again."""

    def _arm_probe(self, now: float) -> None:
        self._probes = 0

    def check_invariants(self) -> None:
        """Says nothing, so that the loss itself must be found."""


FUZZER = Fuzzer[Act, MakeLink](
    name="links",
    invariant="in a generation each message arrives once and in order, or the generation ends",
    draw=draw,
    check=check,
    target=Link,
    faults={
        "a duplicate is delivered": _Twice,
        "a gap is not missed": _Gapless,
        "an old generation's data counts": _Timeless,
        "a lost tail is never asked after": _Deaf,
    },
    round_events=150,
    smoke_rounds=500,
    reaches=frozenset({"gap", "duplicate", "stale", "probe", "generation_ended", "delivered"}),
)
