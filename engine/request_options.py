"""Options of a request: one declaration each, validated at construction.

Options steer how a request is served (who goes first, what may be shared, how long it may take),
where sampling parameters say which tokens come. A `RequestOptions` is read from a body or from the
keywords of `generate`, and travels whole to the frontend's ledger.

An option is declared here once: its type, default, bound, and the sentence about it. Its check, the
keyword of `generate`, the fields of the protocols and their documents follow from the declaration;
of `SentOptions` also its place in the message to the engine, in the engine's request and in the
journal.
"""

import math
from typing import Any

import attrs

from .parameter_bounds import Declarations, Flag, Number, Seconds, Text, Whole, parameter

# Larger integers do not fit the signed 64-bit integers of the wire.
WIRE_INTEGER_MAX = 2**63 - 1
# Principals and salts are digests; a guess, with room for names.
LABEL_CHARACTERS_MAX = 1024
# Tokens that wait are computed again when their engine dies: not more than this.
MERGE_S_MAX = 10.0
# A shorter window cannot be told by the clock; and 0 means that nothing waits.
MERGE_S_MIN = 0.001


# Not frozen, as messages and the engine's requests derive from it.
@attrs.define(kw_only=True, eq=False)
class SentOptions:
    """Options that go with a request to its engine and into the journal, as fields of their own."""

    priority: int = parameter(
        0, Whole(-WIRE_INTEGER_MAX, WIRE_INTEGER_MAX), "Lower goes first, and is preempted last."
    )
    cache_salt: str = parameter(
        "", Text(LABEL_CHARACTERS_MAX), "Share cached prefixes with the same salt only."
    )
    events: bool = parameter(
        False,
        Flag(),
        "Responses: tell what the engine does with it, and, on sockets, of a drain.",
    )
    # None: the server's setting counts; an engine lets nothing wait then, as with 0.
    merge_s: float | None = parameter(
        None,
        Number(MERGE_S_MIN, MERGE_S_MAX, also=0),
        "So long text may wait for more, to be one event; the first and the last do not wait. The"
        " server's setting when absent, usually 0.",
    )
    # Frontends alone need the rest: it is in the message for their journals.
    inexact_ok: bool = parameter(
        False,
        Flag(),
        "Go on also on an engine that computes other tokens; an event reports it.",
    )
    engine: int | None = parameter(
        None,
        Whole(0, WIRE_INTEGER_MAX),
        "The engine that answers, by its number; when it dies, its next life is waited for.",
    )

    def sent(self) -> dict[str, Any]:
        """Options by name, as keywords of a class that derives from them."""
        return dict(zip(_SENT.names, _SENT.values_of(self), strict=True))

    def check_sent(self) -> None:
        """Check the ranges, on the side of the wire where the codec has checked types alone.

        Raises `InvalidParameter`.
        """
        _SENT.check(self)


@attrs.frozen(kw_only=True)
class RequestOptions(SentOptions):
    """Options of a request. Raises `InvalidParameter`, naming the option and its bound."""

    credit: int | None = parameter(
        None,
        Whole(0, WIRE_INTEGER_MAX),
        "Generate so many tokens, and what `runtime.credit` events add.",
    )
    deadline_s: float = parameter(
        math.inf,
        Seconds(),
        "When the answer must have ended, from its arrival; it is incomplete otherwise.",
    )

    def __attrs_post_init__(self) -> None:
        _OPTIONS.check(self)

    def changed(self, **changes: Any) -> "RequestOptions":
        """Copy with these values, which are in range."""
        return _OPTIONS.changed(self, changes)


_SENT = Declarations(SentOptions)
_OPTIONS = Declarations(RequestOptions)
OPTIONS = _OPTIONS.parameters
# Options of a request that asks for none.
NO_OPTIONS = RequestOptions()
