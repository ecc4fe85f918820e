"""Grammars of requests: their protocol, the token masks of a step, and orders to compile them.

Sans-IO: a protocol, bytes and a list. One grammar belongs to one attempt at one request and has
accepted all of its output tokens; it is a pure function of them, so a replay that accepts the same
tokens draws under the same masks. `process.grammar_compiler` compiles what is ordered, in a thread:
nothing that the core does may take the time of a compiler.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs

from ..messages import RequestKey
from ..structured_outputs import StructuredOutputs
from .request import Frontend, Request, RequestStatus
from .request_store import RequestStore

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


@attrs.frozen
class GrammarOrder:
    """A grammar that a request waits for, with the output that it has to accept first."""

    frontend: Frontend
    key: RequestKey
    structured_outputs: StructuredOutputs
    # What ends the output, where it may end. Empty if the request ignores the end of sequence.
    eos_token_ids: frozenset[int]
    # What a replay brought.
    output_token_ids: list[int]


@attrs.define(eq=False)
class GrammarOrders:
    """Orders that were not taken yet; bounded by the requests that came since the last time."""

    store: RequestStore
    _orders: list[GrammarOrder] = attrs.field(factory=list, init=False)

    def order(self, request: Request) -> None:
        """Note what the request waits for, if it waits for a grammar."""
        structured_outputs = request.sampling.structured_outputs
        if request.status is RequestStatus.WAITING_FOR_GRAMMAR and structured_outputs is not None:
            order = GrammarOrder(
                request.frontend,
                RequestKey(request.request_id, request.attempt),
                structured_outputs,
                request.eos_token_ids,
                request.token_ids[request.prompt_tokens :],
            )
            self._orders.append(order)

    @property
    def has_orders(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._orders)

    def take(self) -> list[GrammarOrder]:
        """All of them, in the order of arrival."""
        if not self._orders:
            return []
        orders, self._orders = self._orders, []
        return orders

    def waiting(self, order: GrammarOrder) -> Request | None:
        """The request that still waits for what was ordered; None if it has ended meanwhile."""
        key = order.key
        request = self.store.find_attempt(order.frontend, key.request_id, key.attempt)
        waits = request is not None and request.status is RequestStatus.WAITING_FOR_GRAMMAR
        return request if waits else None
