"""Credit of one stream: the lower one of its reader's window and its client's grants.

How far a stream may be generated has two limits. The *window* follows the reader by itself, so that
a slow one pauses its request instead of filling memory; a client that asks for credit of its own
grants tokens on top of that. Both are absolute output indices (exclusive), as credit is everywhere.

Sans-IO: numbers in, the credit to be sent out.
"""

import math

import attrs

from ...engine.sampling_params import TOKENS_MAX
from ...transports.credits import CreditWindow


@attrs.define(eq=False)
class StreamCredit:
    """The credit of one request; a limit that is None is none."""

    window: CreditWindow | None
    # All that the client has granted so far.
    granted: int | None = None

    # The last credit that was sent; the first goes with the ADD. None: to the end.
    credit: int | None = attrs.field(init=False)
    # `handle_consumed` does nothing below this index.
    grants_at: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.credit = self._allowed()
        self.grants_at = math.inf if self.window is None else self.window.grants_at

    def handle_consumed(self, index: int) -> int | None:
        """All tokens below `index` were taken. Returns the new credit to send, or None."""
        if self.window is None or self.window.handle_consumed(index) is None:
            return None
        self.grants_at = self.window.grants_at
        return self._update()

    def handle_granted(self, tokens: int) -> int | None:
        """The client allows `tokens` more (not negative). Returns the new credit to send, or None.

        A client without a limit of its own has nothing to grant.
        """
        assert tokens >= 0
        if self.granted is None:
            return None
        self.granted = min(self.granted + tokens, TOKENS_MAX)
        return self._update()

    def check_invariants(self) -> None:
        """What was sent is what the limits allow."""
        assert self.credit == self._allowed()
        assert self.grants_at == (math.inf if self.window is None else self.window.grants_at)

    def _allowed(self) -> int | None:
        """The lower limit; None if there is none."""
        window = None if self.window is None else self.window.credit
        if window is None or self.granted is None:
            return self.granted if window is None else window
        return min(window, self.granted)

    def _update(self) -> int | None:
        """Take over what is allowed now; returns it if it has changed."""
        credit, self.credit = self.credit, self._allowed()
        return self.credit if self.credit != credit else None
