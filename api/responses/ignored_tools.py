"""Log of the kinds of tools that requests have and that are not served, each kind once."""

import logging
from collections.abc import Iterable

import attrs

logger = logging.getLogger(__name__)
# Clients name them as they like; of more than these nothing is said.
KINDS_MAX = 64


@attrs.define(eq=False)
class IgnoredTools:
    """Of one protocol of one frontend."""

    kinds: set[str] = attrs.field(factory=set, init=False)

    def note(self, kinds: Iterable[str]) -> None:
        """A request has tools of these kinds."""
        for kind in sorted(set(kinds) - self.kinds)[: KINDS_MAX - len(self.kinds)]:
            self.kinds.add(kind)
            logger.warning("tools of the type %s are ignored: they are carried out elsewhere", kind)
