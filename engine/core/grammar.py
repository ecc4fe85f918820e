"""Grammars of requests: their protocol, and the token masks of a step.

Sans-IO: a protocol and bytes. One grammar belongs to one attempt at one request and has
accepted all of its output tokens; it is a pure function of them, so a replay that accepts the same
tokens draws under the same masks. `process.grammar_compiler` compiles them, in a thread:
nothing that the core does may take the time of a compiler.
"""

from collections.abc import Sequence
from typing import Protocol

# A mask is words of so many tokens, low bit first (`step_messages.Mask`).
WORD_TOKENS = 32
WORD_BYTES = 4


class RequestGrammar(Protocol):
    """A grammar and how far the output has come in it. One thread at a time uses it."""

    def accept(self, token_id: int) -> bool:
        """Go on by the output's next token. False: it may not come here, or a limit was reached.

        After False the grammar is of no more use, and `failure` says why.
        """

    def fill_mask(self, words: memoryview) -> None:
        """Write one bit for each token of the vocabulary: 1 where it may come next.

        `words` has `mask_bytes(vocab_size)` bytes. Ends of sequence are allowed where the output
        may end. Where a limit is reached nothing is allowed but whatever `accept` then refuses.
        """

    @property
    def is_terminated(self) -> bool:
        """Whether the output is complete: nothing can follow but the end of sequence."""

    @property
    def failure(self) -> str:
        """Why `accept` returned False; empty before."""


def mask_bytes(vocab_size: int) -> int:
    """Length in bytes of one row of a mask."""
    return -(-vocab_size // WORD_TOKENS) * WORD_BYTES


def fill_masks(grammars: Sequence[RequestGrammar | None], vocab_size: int) -> bytes:
    """The words of a `Mask`, a row for each grammar. None, of a row that ended: all is allowed."""
    row_bytes = mask_bytes(vocab_size)
    words = memoryview(bytearray(b"\xff" * (row_bytes * len(grammars))))
    for index, grammar in enumerate(grammars):
        if grammar is not None:
            grammar.fill_mask(words[index * row_bytes : (index + 1) * row_bytes])
    return bytes(words)
