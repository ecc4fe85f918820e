"""Schedule of a load and its prompts: which request is sent when; the same seed gives the same.

Sans-IO: times come in as `now`, seconds since the run began. *Closed loop*: so many requests are in
flight, the next one follows an end. *Open loop*: requests arrive at random (Poisson), whether or
not earlier ones have ended; what cannot be sent at once counts from when it was due, so a server
that falls behind cannot hide it. No two prompts share a prefix longer than chance makes it, so that
a prefix cache helps none.
"""

import math
import random
from collections import deque

import attrs

from ...engine.errors import InvalidParameter

# Common words, about a token each in most vocabularies.
WORDS = (
    "the", "fox", "went", "down", "to", "river", "and", "saw", "a", "small", "boat", "with", "red",
    "sail", "that", "was", "old", "but", "still", "good", "so", "it", "took", "long", "way", "home",
    "in", "rain", "then", "night", "came", "over", "green", "hill",
)  # fmt: skip


@attrs.frozen
class Ask:
    """Request to be sent: its number in the run, when it was due (s), what it asks."""

    number: int
    due_s: float
    prompt: str
    tokens: int
    seed: int
    merge_ms: int = 0


@attrs.frozen(kw_only=True)
class Load:
    """Load of a server. `rate` 0 is the closed loop; `in_flight` bounds both.

    `prompt_words` and `tokens` are the size of each request: words in, output tokens out; with
    `prompt_words_max` prompts are of any length from the one to the other. `rate` is arrivals a
    second. With `merge_ms` Responses ask for merge windows of that length. Raises
    `InvalidParameter`, naming the field and its bound.
    """

    requests: int
    in_flight: int = 64
    rate: float = 0.0
    prompt_words: int = 16
    tokens: int = 64
    seed: int = 0
    merge_ms: int = 0
    prompt_words_max: int = 0

    def __attrs_post_init__(self) -> None:
        sizes = {
            "requests": self.requests,
            "in_flight": self.in_flight,
            "prompt_words": self.prompt_words,
            "tokens": self.tokens,
        }
        for name, value in sizes.items():
            if value < 1:
                raise InvalidParameter(name, f"must be at least 1, not {value}")
        if self.prompt_words_max and self.prompt_words_max < self.prompt_words:
            reason = f"must be at least --prompt-words ({self.prompt_words}), or 0"
            raise InvalidParameter("prompt_words_max", reason)
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise InvalidParameter("rate", f"must be a number of at least 0, not {self.rate:g}")


@attrs.define(eq=False)
class Schedule:
    """Rest of a load; ask `take` when a place is free or time has passed."""

    load: Load
    # Requests that were taken and have not ended.
    in_flight: int = attrs.field(default=0, init=False)
    # Times still to come in the open loop, oldest first. Bounded by the requests of the load.
    _arrivals: deque[float] = attrs.field(factory=deque, init=False)
    _taken: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        if self.load.rate > 0:
            chance = random.Random(f"arrivals {self.load.seed}")
            at_s = 0.0
            for _ in range(self.load.requests):
                at_s += chance.expovariate(self.load.rate)
                self._arrivals.append(at_s)

    @property
    def is_over(self) -> bool:
        """Whether every request was taken and has ended."""
        return self._taken == self.load.requests and self.in_flight == 0

    def next_due_s(self) -> float:
        """When `take` will give something without an end before; infinite if only an end helps."""
        if self._taken == self.load.requests or self.in_flight == self.load.in_flight:
            return math.inf
        return self._arrivals[0] if self._arrivals else 0.0

    def take(self, now: float) -> Ask | None:
        """The next request, if it is due and a place is free."""
        due_s = self.next_due_s()
        if due_s > now:
            return None
        if self._arrivals:
            self._arrivals.popleft()
        else:
            due_s = now
        number = self._taken
        self._taken += 1
        self.in_flight += 1
        load = self.load
        prompt = make_prompt(load, number)
        return Ask(number, due_s, prompt, load.tokens, load.seed + number, load.merge_ms)

    def handle_end(self) -> None:
        """Note that a request has ended, however it did."""
        assert self.in_flight > 0
        self.in_flight -= 1

    def check_invariants(self) -> None:
        """Assert that the bounds hold; for property tests."""
        assert 0 <= self.in_flight <= self.load.in_flight
        assert self.in_flight <= self._taken <= self.load.requests


def make_prompt(load: Load, number: int) -> str:
    """The text of one request, a function of seed and number: no two share a long prefix."""
    chance = random.Random(f"prompt {load.seed} {number}")
    longest = max(load.prompt_words, load.prompt_words_max)
    words = chance.randint(load.prompt_words, longest) if longest > load.prompt_words else longest
    return " ".join(chance.choices(WORDS, k=words))
