"""Books of held connections under drawn events; cases are in `tests/scenarios/connection_slots`."""

import random
from collections.abc import Iterable

import attrs

from triolet.runtime.continuity.connection_slots import ConnectionSlots, HeldConnection


@attrs.define(eq=False)
class Server:
    """Random events of a rank's life, and what is true of every connection after each."""

    chance: random.Random
    slots: ConnectionSlots = attrs.field(factory=lambda: ConnectionSlots(8))
    epoch: int = 1
    is_up: bool = False
    connections: int = 0
    offered: list[tuple[HeldConnection, int]] = attrs.field(factory=list)
    # What the present process was sent.
    had: set[HeldConnection] = attrs.field(factory=set)
    stopping: set[HeldConnection] = attrs.field(factory=set)
    orphans: set[HeldConnection] = attrs.field(factory=set)
    dirty: list[int] = attrs.field(factory=list)

    def act(self) -> None:
        often = (self.offer, self.settle, self.end, self.clear)
        act = self.chance.choice((*often, *often, self.pass_again, self.live, self.stop))
        act()
        self.slots.check_invariants()
        assert set(self.slots.waiting()) == self.orphans
        assert len(self.slots) == len(self.offered) + len(self.had) + len(self.orphans)

    def offer(self) -> None:
        self.connections += 1
        if self.is_up and (held := self.slots.offer(self.connections)) is not None:
            assert held.slot not in self.dirty
            self.offered.append((held, self.epoch))

    def settle(self) -> None:
        """A sender hears how it ended."""
        if not self.offered:
            return
        held, epoch = self.offered.pop(self.chance.randrange(len(self.offered)))
        if self.chance.random() < 0.7:
            self.slots.handle_taken(held, epoch)
            (self.had if self.is_up and epoch == self.epoch else self.orphans).add(held)
        else:
            self.released(self.slots.handle_not_taken(held), [held])

    def pass_again(self) -> None:
        if self.is_up and self.orphans:
            held = self.slots.waiting()[0]
            self.slots.handle_taken(held, self.epoch)
            self.orphans.remove(held)
            self.had.add(held)

    def end(self) -> None:
        if self.had:
            held = min(self.had, key=lambda each: each.connection_id)
            self.had.remove(held)
            self.stopping.discard(held)
            self.released(self.slots.handle_ended([held.slot]), [held])

    def clear(self) -> None:
        if self.dirty:
            self.slots.handle_cleared(self.dirty.pop())

    def live(self) -> None:
        """The next life begins, or this one ends."""
        if not self.is_up:
            self.is_up = True
            self.epoch += 1
            self.slots.handle_ready(self.epoch)
        elif self.chance.random() < 0.3:
            self.is_up = False
            self.released(self.slots.handle_gone(), self.stopping)
            self.orphans |= self.had - self.stopping
            self.had, self.stopping = set(), set()

    def stop(self) -> None:
        if self.is_up and self.chance.random() < 0.1:
            self.slots.handle_stopping()
            self.stopping = set(self.had)

    def released(self, found: list[HeldConnection], expected: Iterable[HeldConnection]) -> None:
        assert sorted(each.slot for each in found) == sorted(each.slot for each in expected)
        self.dirty += [each.slot for each in found]


def test_every_connection_is_in_one_place_whatever_happens() -> None:
    for seed in range(20):
        server = Server(random.Random(seed))
        for _ in range(1500):
            server.act()
        assert server.connections > 100
