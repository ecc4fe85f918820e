"""Keys of links over a network, and the guests who may come by them.

A spoke that comes over a network shows a key pair of its own, a CURVE one of ZeroMQ, and knows the
hub by its public key. Who knows the pair of a host may come as any rank of that host, as hosts
trust one another's honesty; so a key is listed with the ranks that may come by it.

Sans-IO, and without ZeroMQ: a process that only passes keys on does not load it. `curve` makes
them, and asks here.
"""

from collections.abc import Mapping
from types import MappingProxyType

import attrs

KEY_BYTES = 32

# {client's public key: ranks that may come by it, None for any}.
AllowedKeys = Mapping[bytes, frozenset[int] | None]


def check_key(instance: object, attribute: "attrs.Attribute[bytes]", value: bytes) -> None:
    """Validator of an attribute that is a key."""
    if len(value) != KEY_BYTES:
        raise ValueError(f"the {attribute.name} key has {len(value)} bytes instead of {KEY_BYTES}")


@attrs.frozen
class LinkKeys:
    """A key pair, of a hub or of those who connect."""

    public: bytes = attrs.field(validator=check_key)
    secret: bytes = attrs.field(validator=check_key, repr=False)


@attrs.define(eq=False)
class Guests:
    """Keys that may come in: replaced as a whole by the loop, read by the sockets' threads."""

    _allowed: AllowedKeys = attrs.field(factory=lambda: MappingProxyType({}), init=False)
    # Connections that were not let in, so far; written by the thread that answers.
    refusals: int = attrs.field(default=0, init=False)

    def allow(self, keys: AllowedKeys) -> None:
        """Let these in from now on, and no others. Connections that are up stay up."""
        self._allowed = MappingProxyType(dict(keys))

    def let_in(self, key: bytes) -> bool:
        """Whether a connection may be made by this key; counted if not."""
        is_known = key in self._allowed
        self.refusals += not is_known
        return is_known

    def may_come_as(self, key: bytes, rank: int) -> bool:
        """Whether who showed this key may speak for that rank."""
        ranks = self._allowed.get(key, frozenset())
        return ranks is None or rank in ranks
