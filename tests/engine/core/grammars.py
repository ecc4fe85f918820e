"""A grammar for tests of the core: tokens of one set in turns, so many of them."""

import attrs

from triolet.engine.core.grammar import mask_bytes


@attrs.define(eq=False)
class CountingGrammar:
    """Token i of the output must be in `allowed[i % len(allowed)]`; complete after `length`."""

    allowed: list[set[int]]
    length: int
    vocab_size: int
    accepted: list[int] = attrs.field(factory=list)
    failure: str = ""

    @property
    def is_terminated(self) -> bool:
        return len(self.accepted) == self.length

    def accept(self, token_id: int) -> bool:
        if self.is_terminated or token_id not in self._next():
            self.failure = f"token {token_id} cannot come here"
            return False
        self.accepted.append(token_id)
        return True

    def fill_mask(self, words: memoryview) -> None:
        assert len(words) == mask_bytes(self.vocab_size)
        bits = sum(1 << token_id for token_id in self._next())
        words[:] = bits.to_bytes(len(words), "little")

    def _next(self) -> set[int]:
        return self.allowed[len(self.accepted) % len(self.allowed)]
