"""Guests of a head: the keys by which hosts may come now, the cluster's and those of tickets.

Sans-IO, but for reading the cluster's file again when somebody has changed it: by a rotated pair
hosts come as long as the file names it.
"""

from collections.abc import Callable, Sequence

import attrs

from ...engine.errors import InvalidParameter
from ..errors import ControlCallRefused
from .host_keys import ClusterKeys


@attrs.define(eq=False)
class HostGuests:
    """Keys of one head's hosts. `read` reads the cluster's again, if they are in a file; it raises
    `InvalidParameter`.
    """

    keys: ClusterKeys
    read: Callable[[], ClusterKeys] | None = None
    # {public key of a ticket: the host that it is for}.
    _tickets: dict[bytes, str] = attrs.field(factory=dict, init=False)

    def let_in(self) -> Sequence[bytes]:
        """Public keys by which a host may come."""
        return [*self.keys.let_in, *self._tickets]

    def make_ticket(self, name: str) -> ClusterKeys:
        """Keys for the host of this name, besides any that it has."""
        ticket = self.keys.make_ticket()
        self._tickets[ticket.hosts.public] = name
        return ticket

    def withdraw(self, name: str) -> bool:
        """Whether there were tickets of this host; there are none now."""
        held = [key for key, holder in self._tickets.items() if holder == name]
        for key in held:
            del self._tickets[key]
        return bool(held)

    def reload(self) -> None:
        """Take the cluster's keys as their file has them now. Raises `ControlCallRefused`."""
        if self.read is None:
            raise ControlCallRefused("the keys of this server are of no file", "no_host")
        try:
            keys = self.read()
        except InvalidParameter as error:
            raise ControlCallRefused(str(error), "bad_keys") from error
        if keys.head != self.keys.head:
            reason = "the head's own pair is another one in the file, which takes a new start"
            raise ControlCallRefused(reason, "bad_keys")
        self.keys = keys
