"""Slots of the kill campaign's load: places that have one stream at a time, and their account.

Each is written by the thread that reads its streams, and read by the campaign. Kept are what was
asked for, how often connections broke, and, after each kill, the longest silences.
"""

import time
from collections.abc import Mapping, Sequence

import attrs

from .answers import Answer, differences
from .report import Kill

# Each slot has so many requests, which it asks for in turn.
ROUNDS = 2
# A slot whose answer failed waits so long: a server that refuses is not asked in a busy loop.
BACKOFF_S = 0.1


@attrs.define(eq=False)
class Slot:
    """A place that has one stream at a time."""

    name: str
    number: int
    round: int = 0
    answer: Answer | None = None
    last_s: float = 0.0
    # The last kill, where this stream met it.
    kill: Kill | None = None
    # Requests to engines that were asked for, each choice one; those of them that were sent again,
    # as nothing had come of them when their connection broke.
    asked: int = 0
    asked_again: int = 0
    # Connections that broke in the midst of an answer, and documented refusals.
    breaks: int = 0
    refusals: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether it has seen a token, and no end."""
        answer = self.answer
        return answer is not None and not answer.ended and answer.tokens > 0

    def begin(self) -> int:
        """A new answer; the number of its request."""
        self.answer, self.kill, self.last_s = Answer(), None, time.monotonic()
        return self.number * ROUNDS + self.round % ROUNDS

    def ask(self, choices: int = 1) -> None:
        """The request is about to be sent, for the first time or again."""
        assert self.answer is not None
        if self.answer.is_asked:
            self.asked_again += choices
        else:
            self.asked += choices
        self.answer.is_asked = True

    def beat(self) -> None:
        """Something came."""
        now = time.monotonic()
        self._note(now)
        self.last_s = now

    def watch(self, kill: Kill | None) -> None:
        """Note the longest silence there from now on, if a stream is under way."""
        under_way = self.is_under_way
        if under_way and kill is not None:
            self._note(time.monotonic())  # a silence that still lasts
            kill.gaps[self.name] = 0.0
        self.kill = kill if under_way else None

    def break_off(self) -> None:
        """Its connection broke: it is one of those that the last kill hit, or should not have."""
        self.breaks += 1
        if self.kill is None:
            return
        if self.kill.hit is not None:
            self.kill.hit.add(self.name)
        elif self.answer is not None:
            self.answer.blame(f"its connection broke after {self.kill.place} was killed")

    def _note(self, now: float) -> None:
        kill = self.kill
        if kill is not None:
            kill.gaps[self.name] = max(kill.gaps[self.name], now - self.last_s)


@attrs.define(eq=False)
class Account:
    """What all slots have seen, against what they should.

    `expected` is what an undisturbed server answered, by request; without, what comes is recorded.
    """

    expected: Mapping[str, Answer] | None = None
    # Whether clients whose connection breaks go on by another; else that is a failure.
    comes_back: bool = False
    recorded: dict[str, Answer] = attrs.field(factory=dict, init=False)
    stopping: bool = attrs.field(default=False, init=False)
    compared: int = attrs.field(default=0, init=False)
    output_tokens: int = attrs.field(default=0, init=False)
    # One entry for each answer that was not as expected.
    wrong: list[str] = attrs.field(factory=list, init=False)

    def goes_on(self, slot: Slot) -> bool:
        """Whether this slot asks for one more."""
        return not self.stopping and (self.expected is not None or slot.round < ROUNDS)

    def any_goes_on(self, slots: Sequence[Slot]) -> bool:
        """Whether one of them does."""
        return any(self.goes_on(slot) for slot in slots)

    def take(self, slot: Slot, request: str) -> None:
        """The answer of this slot has ended, well or not."""
        answer = slot.answer
        assert answer is not None
        slot.round += 1
        self.compared += 1
        self.output_tokens += sum(len(choice.token_ids) for choice in answer.choices.values())
        self.recorded[request] = answer
        found = [answer.error] if answer.error else []
        if self.expected is not None:
            found = differences(answer, self.expected[request])
        if found:
            self.wrong.append(f"{request}: {'; '.join(found)}")
            time.sleep(BACKOFF_S)
