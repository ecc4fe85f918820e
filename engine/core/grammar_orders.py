"""Grammars that requests wait for: what has to be compiled, and whom it is for.

Sans-IO: a list. `engine_core` says who waits and what comes of it; a shell compiles in a thread,
for whatever the core does must not take the time of a compiler. Must not know any grammar.
"""

import attrs

from ..messages import RequestKey
from ..structured_outputs import StructuredOutputs
from .request import Frontend, Request, RequestStatus
from .request_store import RequestStore


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
    """Orders that nobody has taken yet; bounded by the requests that came since the last time."""

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
