"""Shares of connections in what all have together: memory for input, and places by address.

Sans-IO: sums, and what a socket says of its other side.
"""

import ipaddress
import math
from typing import Protocol

import attrs

# Unfinished input that counts for nothing, of each connection; few requests are larger.
FREE_BYTES = 64 * 2**10


@attrs.define(eq=False)
class MemoryBudget:
    """Memory that all connections share, and what they have taken of it together."""

    bytes_max: float = math.inf
    taken: int = attrs.field(default=0, init=False)


@attrs.define(eq=False)
class InputShare:
    """Share of one connection in the memory for input that is not whole yet, until it ends.

    Each alone is bounded, but two thousand connections of 16 MiB are not: a slow body lasts half a
    minute, an unfinished message as long as its socket. Small ones are free, as their number is
    bounded by that of connections.
    """

    budget: MemoryBudget = attrs.field(factory=MemoryBudget)
    _taken: int = attrs.field(default=0, init=False)

    def reserve(self, size: int) -> bool:
        """Reserve bytes for input, there or announced; False if there is no room for them.

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
        """Release input that was used, or is lost."""
        self.reserve(0)


# The address of all clients that are not distinguished.
LOCAL = ""
_NETWORK_BITS = 64


class PeerNamed(Protocol):
    """Socket that `address_of` can ask."""

    def getpeername(self) -> object:
        """The other side's address; raises `OSError` when it has left."""


def address_of(socket: PeerNamed) -> str:
    """The address a connection is counted for; `LOCAL` also when it has left.

    Clients of this machine are not distinguished (loopback, Unix sockets, a proxy beside us): for
    them only the total counts. Of IPv6 a client owns a network of 64 bits, so that is its address.
    """
    try:
        name = socket.getpeername()
    except OSError:
        return LOCAL
    if not isinstance(name, tuple) or not name:
        return LOCAL
    try:
        address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    except ValueError:
        return LOCAL
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    if address.is_loopback:
        return LOCAL
    if address.version == 6:
        return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
    return str(address)
