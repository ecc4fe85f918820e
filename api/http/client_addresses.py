"""Connection counts by client address, so that one client cannot take all there may be.

Clients of this machine are not distinguished (loopback, Unix sockets, a proxy beside us): for them
only the total counts. Of IPv6 a client owns a network of 64 bits, so that is its address here.
"""

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs

# The address of all clients that are not distinguished.
LOCAL = ""
_NETWORK_BITS = 64


class Named(Protocol):
    """As much of a socket as is asked here."""

    def getpeername(self) -> object:
        """The other side's address; raises `OSError` when it has left."""


def address_of(socket: Named) -> str:
    """What a connection is counted for; `LOCAL` also when it has left."""
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


@attrs.define(eq=False)
class ClientAddresses:
    """How many connections each address has."""

    per_address_max: int
    # {address: open connections}, none of 0; bounded by the connections there are.
    _open: Counter[str] = attrs.field(factory=Counter, init=False)

    def is_full(self, address: str) -> bool:
        """Whether one more of this address would be over the limit."""
        return address != LOCAL and self._open[address] >= self.per_address_max

    @contextmanager
    def connection(self, address: str) -> Iterator[None]:
        """The life of one connection."""
        self._open[address] += 1
        try:
            yield
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def check_invariants(self) -> None:
        """No address without connections is kept."""
        assert all(count > 0 for count in self._open.values())
