"""Credit window of a stream: when its consumer grants the producer more room.

Sans-IO: numbers in, numbers out. *Credit* is the absolute index up to which the producer may go
(exclusive), so a grant may be repeated, lost before a later one, or come twice, and means the same.
The window is how far the producer may be ahead of the consumer.
"""

import attrs


@attrs.define(eq=False)
class CreditWindow:
    """The consumer's side of one stream.

    A new grant is worth a message only when it moves credit by at least half a window; a producer
    that has used all its credit always gets one, since then the whole window is free.
    """

    window: int = attrs.field(validator=attrs.validators.ge(1))
    # Items consumed when the stream begins here: 0, or where a resumed stream goes on.
    consumed: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    # The last grant; the producer may have an older one, never a higher one.
    credit: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.credit = self.consumed + self.window

    @property
    def grants_at(self) -> int:
        """Consumption below this index brings no grant, so it need not be reported."""
        return self.credit - self.window + max(1, self.window // 2)

    def handle_consumed(self, index: int) -> int | None:
        """All items below `index` are consumed. Returns the new credit to send, or None.

        An index that is not new (a repeat, an overtaken report) changes nothing.
        """
        self.consumed = max(self.consumed, index)
        target = self.consumed + self.window
        if target - self.credit < max(1, self.window // 2):
            return None
        self.credit = target
        return target

    def check_invariants(self) -> None:
        """For fuzzers: the producer is never stuck, never further ahead than the window."""
        assert self.credit <= self.consumed + self.window
        assert self.credit > self.consumed + self.window - max(1, self.window // 2)
