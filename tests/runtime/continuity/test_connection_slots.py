"""Books of held connections: who has each, and when its slot may be used again."""

import random
from collections.abc import Iterable

import attrs

from triolet.runtime.continuity.connection_slots import ConnectionSlots, HeldConnection, HeldPhase
from triolet.transports.takeover.memory import SLOTS


def taken(slots: ConnectionSlots, connection_id: int, epoch: int) -> HeldConnection:
    """A connection that this process has."""
    held = slots.offer(connection_id)
    assert held is not None
    slots.handle_taken(held, epoch)
    return held


def test_what_a_dead_process_had_goes_to_the_next() -> None:
    slots = ConnectionSlots()
    slots.handle_ready(1)
    first, second = taken(slots, 10, 1), taken(slots, 11, 1)
    assert slots.waiting() == []
    assert slots.handle_gone() == []
    assert slots.waiting() == [first, second]
    slots.handle_ready(2)
    slots.handle_taken(first, 2)
    assert slots.waiting() == [second]
    assert slots.handle_gone() == []  # in the middle
    assert slots.waiting() == [first, second]
    slots.check_invariants()


def test_one_that_was_sent_to_a_process_that_is_dead_by_now_waits() -> None:
    slots = ConnectionSlots()
    slots.handle_ready(1)
    held = slots.offer(10)
    assert held is not None
    slots.handle_gone()
    assert slots.waiting() == []  # it may not have been sent: then another rank gets it
    slots.handle_taken(held, 1)
    assert slots.waiting() == [held]


def test_one_that_was_not_sent_is_released() -> None:
    slots = ConnectionSlots()
    slots.handle_ready(1)
    held = slots.offer(10)
    assert held is not None
    slots.handle_gone()
    assert slots.handle_not_taken(held) == [held]
    assert slots.handle_not_taken(held) == []
    assert len(slots) == 0


def test_one_that_ended_before_its_sender_went_on_stays_ended() -> None:
    slots = ConnectionSlots()
    slots.handle_ready(1)
    held = slots.offer(10)
    assert held is not None
    assert slots.handle_ended([held.slot, held.slot, 7, -1, SLOTS]) == [held]
    slots.handle_cleared(held.slot)
    other = slots.offer(11)
    assert other is not None
    assert other.slot == held.slot
    slots.handle_taken(held, 1)
    assert slots.handle_not_taken(held) == []
    assert other.phase is HeldPhase.OFFERED
    slots.check_invariants()


def test_a_process_that_was_ordered_to_end_ends_what_it_had() -> None:
    slots = ConnectionSlots()
    slots.handle_ready(1)
    first, second = taken(slots, 10, 1), taken(slots, 11, 1)
    slots.handle_gone()
    slots.handle_ready(2)
    slots.handle_taken(first, 2)
    slots.handle_stopping()
    assert slots.handle_gone() == [first]
    assert slots.waiting() == [second]  # this one it never got


def test_without_a_next_process_all_are_released() -> None:
    slots = ConnectionSlots()
    slots.handle_ready(1)
    first = taken(slots, 10, 1)
    slots.handle_gone()
    assert slots.handle_given_up() == [first]
    assert slots.waiting() == []


def test_nothing_is_held_for_a_process_without_slots() -> None:
    slots = ConnectionSlots()
    assert slots.offer(1) is None
    slots.handle_ready(1)
    slots.handle_gone()
    assert slots.offer(2) is None


def test_a_slot_is_used_again_only_when_its_memory_is_cleared() -> None:
    slots = ConnectionSlots()
    slots.handle_ready(1)
    held = [taken(slots, number, 1) for number in range(SLOTS)]
    assert {each.slot for each in held} == set(range(SLOTS))
    assert slots.offer(SLOTS) is None
    assert slots.handle_ended([5]) == [held[5]]
    assert slots.offer(SLOTS) is None
    slots.handle_cleared(5)
    again = slots.offer(SLOTS)
    assert again is not None
    assert again.slot == 5


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
