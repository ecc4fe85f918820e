"""A compiled grammar and how far one request's output has come in it: llguidance's matcher.

Implements `core.grammar.RequestGrammar`. The end of sequence is allowed where the output may end,
unless the request ignores it: then the output ends where nothing else may follow.

Masks are computed between the steps of all requests, and what a matcher does there has no bound of
its own that is worth the name: with a grammar that can be read in many ways each token costs more
than the one before, until one mask takes a second. So a grammar has so much of the processor's time
for each token, and some to spare; one that has used it up allows nothing more, and its request
fails alone. It is this thread's time, so that a busy machine fails no request.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
from llguidance import LLMatcher

NOTHING_LEFT = "its grammar allows no token here"
TOO_SLOW = "its grammar takes too long for each token: too many ways to read the same text"
# Seconds. Grammars in use take 0.1 ms on the average, and at most 3 ms with 74 000 tokens.
TOKEN_S, SPARE_S = 0.01, 0.5

T = TypeVar("T")

# Called before a matcher works, which may end this process, with how many tokens it has accepted;
# with None afterwards.
ShowWork = Callable[[int | None], None]


def show_nothing(accepted: int | None) -> None:
    """Show no work: whatever ends the process is found otherwise."""


@attrs.define(eq=False)
class MatchedGrammar:
    """Grammar of one request. `ignored_ends` are ends of sequence that do not end this request."""

    matcher: LLMatcher
    ignored_ends: frozenset[int] = frozenset()
    show_work: ShowWork = show_nothing
    _clock: Callable[[], float] = time.thread_time
    _accepted: int = attrs.field(default=0, init=False)
    _failure: str = attrs.field(default="", init=False)
    # Time that the matcher may still take.
    _left_s: float = attrs.field(default=SPARE_S, init=False)

    @property
    def is_terminated(self) -> bool:
        if self.matcher.is_error():
            return False
        if self.matcher.is_stopped():
            return True
        if not self.ignored_ends or not self.matcher.is_accepting():
            return False
        return not any(self._mask()) and not self._failure

    @property
    def failure(self) -> str:
        return self._failure

    def accept(self, token_id: int) -> bool:
        if self._failure:
            return False
        self.show_work(self._accepted)
        is_accepted = self._consume(token_id)
        self.show_work(None)
        return is_accepted

    def replay(self, token_ids: Sequence[int]) -> int | None:
        """Accept an output so far, without showing it; returns the index of what does not match."""
        return next((at for at, each in enumerate(token_ids) if not self._consume(each)), None)

    def _consume(self, token_id: int) -> bool:
        if token_id not in self.ignored_ends and self._timed(
            lambda: self.matcher.consume_token(token_id)
        ):
            self._left_s = min(SPARE_S, self._left_s + TOKEN_S)
            self._accepted += 1
            return True
        self._failure = self._report()
        return False

    def fill_mask(self, words: memoryview) -> None:
        mask = self._mask()
        words[:] = mask[: len(words)]  # a word more, where the vocabulary fills its last one

    def _mask(self) -> bytes:
        self.show_work(self._accepted)
        mask: bytes = self._timed(self.matcher.compute_bitmask)
        self.show_work(None)
        if self.matcher.is_error():
            # The mask of a failed matcher allows the end, which would pass for a complete output.
            self._failure = self._report()
        elif self._left_s < 0:
            self._failure = TOO_SLOW
        if self._failure:
            return bytes(len(mask))
        if not self.ignored_ends:
            return mask
        allowed = bytearray(mask)
        for token_id in self.ignored_ends:
            allowed[token_id // 8] &= ~(1 << token_id % 8) & 0xFF
        return bytes(allowed)

    def _timed(self, work: Callable[[], T]) -> T:
        began = self._clock()
        done = work()
        self._left_s -= self._clock() - began
        return done

    def _report(self) -> str:
        return str(self.matcher.get_error()).split("\n", 1)[0] or NOTHING_LEFT
