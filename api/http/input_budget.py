"""Memory budget of request bodies and WebSocket messages that are not whole yet, of all clients.

Each alone is bounded, but two thousand connections of 16 MiB are not: a slow body lasts half a
minute, an unfinished message as long as its socket. Small ones are free, as their number is bounded
by that of connections.
"""

import math

import attrs

# What every connection may have for nothing; few requests are larger.
FREE_BYTES = 64 * 2**10


@attrs.define(eq=False)
class InputBudget:
    """Of one frontend."""

    bytes_max: float = math.inf
    # The sum of all shares.
    taken: int = attrs.field(default=0, init=False)


@attrs.define(eq=False)
class InputShare:
    """What one connection has of it; released when the connection ends."""

    budget: InputBudget = attrs.field(factory=InputBudget)
    _taken: int = attrs.field(default=0, init=False)

    def hold(self, size: int) -> bool:
        """Its input has, or will have, so many bytes; False if there is no room for them.

        The share is then as before.
        """
        if size <= FREE_BYTES and not self._taken:
            return True
        taken = max(0, size - FREE_BYTES)
        total = self.budget.taken + taken - self._taken
        if taken > self._taken and total > self.budget.bytes_max:
            return False
        self.budget.taken, self._taken = total, taken
        return True

    def release(self) -> None:
        """Its input was used, or is lost."""
        self.hold(0)
