"""A compiled grammar and how far one request's output has come in it: llguidance's matcher.

Implements `core.grammar.RequestGrammar`. The end of sequence is allowed where the output may end,
unless the request ignores it: then the output ends where nothing else may follow. Must not know
schemas, how the matcher was made, or who samples.
"""

import attrs
from llguidance import LLMatcher

NOTHING_LEFT = "its grammar allows no token here"


@attrs.define(eq=False)
class MatchedGrammar:
    """One request's. `ignored_ends` are ends of sequence that do not end this request."""

    _matcher: LLMatcher
    _ignored_ends: frozenset[int] = frozenset()
    _failure: str = ""

    @property
    def is_terminated(self) -> bool:
        """See `RequestGrammar`."""
        if self._matcher.is_error():
            return False
        if self._matcher.is_stopped():
            return True
        return bool(self._ignored_ends) and self._matcher.is_accepting() and not any(self._mask())

    @property
    def failure(self) -> str:
        """See `RequestGrammar`."""
        return self._failure

    def accept(self, token_id: int) -> bool:
        """See `RequestGrammar`."""
        if self._failure:
            return False
        if token_id not in self._ignored_ends and self._matcher.consume_token(token_id):
            return True
        self._failure = self._report()
        return False

    def fill_mask(self, words: memoryview) -> None:
        """See `RequestGrammar`."""
        mask = self._mask()
        words[:] = mask[: len(words)]  # a word more, where the vocabulary fills its last one

    def _mask(self) -> bytes:
        mask: bytes = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            # What it returns then allows the end, which would pass for a complete output.
            self._failure = self._report()
            return bytes(len(mask))
        if not self._ignored_ends:
            return mask
        allowed = bytearray(mask)
        for token_id in self._ignored_ends:
            allowed[token_id // 8] &= ~(1 << token_id % 8) & 0xFF
        return bytes(allowed)

    def _report(self) -> str:
        return str(self._matcher.get_error()).split("\n", 1)[0] or NOTHING_LEFT
