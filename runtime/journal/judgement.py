"""Judgement of an engine's output: does it count, and if not, why.

One rule for the ledger, which takes outputs as they come, and for a journal's reader, which finds
them again among its records.

Sans-IO.
"""

import enum
from typing import Protocol

from ...engine.messages import FinishReason, RequestOutput
from ...transports.links.channel import Peer


class Refusal(enum.StrEnum):
    """Why an output was not accepted."""

    UNKNOWN_REQUEST = "unknown_request"  # ended here already, as after every abort
    OTHER_ENGINE = "other_engine"  # the request has moved on
    OLD_ATTEMPT = "old_attempt"
    # Links are numbered and engines say nothing before the RESYNC that begins one, so that these
    # two are faults of an engine; a new generation of the link makes up for them.
    REPEATED = "repeated"  # begins below the next index
    GAP = "gap"  # begins above it: something between was lost


class InFlight(Protocol):
    """Request in flight, as outputs are judged by it."""

    @property
    def attempt(self) -> int:
        """The present one."""

    @property
    def peer(self) -> Peer | None:
        """The engine that has it."""

    @property
    def token_ids(self) -> list[int]:
        """Tokens that count."""


def judge(entry: InFlight | None, peer: Peer, output: RequestOutput) -> Refusal | None:
    """Why an output does not count; None if it does. The cases, in this order:

    - no such request: it has ended here, as after every abort;
    - another attempt: said before the request was sent again;
    - another engine: the request has moved on;
    - exactly next: it counts;
    - beyond that: something between was lost;
    - below that: it came before. An early end without tokens counts all the same: where we have
      more tokens than the engine, the request is over at the engine nevertheless.
    """
    if entry is None:
        return Refusal.UNKNOWN_REQUEST
    if entry.attempt != output.attempt:
        return Refusal.OLD_ATTEMPT
    if entry.peer is not peer and entry.peer != peer:
        return Refusal.OTHER_ENGINE
    next_index, first = len(entry.token_ids), output.first_index
    if first == next_index:
        return None
    if first > next_index:
        return Refusal.GAP
    is_early = output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT)
    return None if is_early and not output.token_ids else Refusal.REPEATED
