"""Decisions of the ledger: which outputs count, why others do not, and what is to be done.

Sans-IO: values only. `ledger` decides, `core_client` carries out.
"""

import enum

import attrs

from ...engine.errors import EngineDied
from ...engine.messages import AbortRequests, GrantCredit, RequestOutput
from ...transports.links.channel import Peer
from .ledger_entry import LedgerEntry


class EngineGonePolicy(enum.StrEnum):
    """What becomes of the requests of an engine that is gone."""

    FAIL = "fail"  # with `EngineDied`, which clients may retry
    REPLAY = "replay"  # sent to another engine with the tokens so far


class Refusal(enum.StrEnum):
    """Why an output was not accepted."""

    UNKNOWN_REQUEST = "unknown_request"  # ended here already, as after every abort
    OTHER_ENGINE = "other_engine"  # the request has moved on
    OLD_ATTEMPT = "old_attempt"
    # Links are numbered and engines say nothing before the RESYNC that begins one, so that these
    # two are faults of an engine; a new generation of the link makes up for them.
    REPEATED = "repeated"  # begins below the next index
    GAP = "gap"  # begins above it: something between was lost


@attrs.frozen
class Fail:
    """Tell the client: the request ended with this error."""

    entry: LedgerEntry
    error: EngineDied


@attrs.frozen
class Replay:
    """Choose another engine and call `handle_replay`, or `handle_give_up` if there is none."""

    request_id: str


Decision = Fail | Replay


@attrs.frozen
class Send:
    """A message for one engine; if the channel refuses it, that is all right."""

    peer: Peer
    message: AbortRequests | GrantCredit


@attrs.frozen
class Accepted:
    """What counts of a message: entries with one token more each, and all that is not just that.

    By entry and not by name: an id may be used again before all of this is delivered.
    `out_of_order`: something did not count, as its index was not next. The link is to be broken, so
    that a RESYNC asks for what is.
    """

    tokens: list[LedgerEntry]
    outputs: list[tuple[LedgerEntry, RequestOutput]]
    out_of_order: bool = False


NOTHING = Accepted([], [])
