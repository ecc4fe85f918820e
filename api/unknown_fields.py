"""Policy for fields of request bodies that no table names: ignore, warn once per name, or refuse.

A misspelt parameter is dropped by servers of this protocol, and its client never learns of it. The
log says which names came, each once; how many are remembered is bounded, as clients choose them.
"""

import logging

import attrs

from .errors import bad_field
from .schema.fields import JsonObject
from .schema.tables import Body
from .settings import IGNORE, POLICIES, REFUSE, WARN

# SDKs have some thirty fields beyond ours; of more names nothing is logged.
NAMES_MAX = 128
# Characters of one name, in the log and in an error.
NAME_CHARACTERS_MAX = 100
# Fields of socket events that are beside a body's own; the session reads them.
EVENT_FIELDS = frozenset({"type", "stream_id", "event_id"})
logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class UnknownFields:
    """The policy of one frontend, and the names it has warned of."""

    policy: str = attrs.field(default=WARN, validator=attrs.validators.in_(POLICIES))
    names: set[str] = attrs.field(factory=set, init=False)

    def check(self, body: Body, values: JsonObject, beside: frozenset[str] = frozenset()) -> None:
        """Look a body through; `beside` are known though the table lacks them.

        Raises `ApiError` 400 where such fields are refused.
        """
        if self.policy == IGNORE:
            return
        for name in body.unknown(values):
            if name in beside:
                continue
            name = name[:NAME_CHARACTERS_MAX]
            if self.policy == REFUSE:
                raise bad_field(name, "is not a known field", "unknown_parameter")
            if name not in self.names and len(self.names) < NAMES_MAX:
                self.names.add(name)
                last = "; no more names will be logged" if len(self.names) == NAMES_MAX else ""
                logger.warning("the field %a of a request is not known, and ignored%s", name, last)
