"""Decides where a call from one frontend to another goes, and where its answer goes back.

Sans-IO: a message and who is there in, a delivery or nothing out; `frontend_fleet` delivers. The
root reads ranks and epochs and nothing else. A call goes to whoever has the rank now: a successor
says by itself that it does not know the response. An answer goes to the very epoch that asked,
whose call ids alone mean what it says; a successor counts from one again.
"""

from collections.abc import Mapping

import attrs

from ..messages import ForeignCall, ForeignOutcome, ForeignReply


@attrs.frozen
class Delivery:
    """Give this message to the frontend of this rank."""

    frontend: int
    message: ForeignCall | ForeignReply


def deliver(message: ForeignCall | ForeignReply, epochs: Mapping[int, int]) -> Delivery | None:
    """Where the message goes; `epochs` are those of all frontends that are up, by rank.

    A call to one that is gone is answered in its place. None: nobody waits for it any more.
    """
    if isinstance(message, ForeignCall):
        if message.frontend in epochs:
            return Delivery(message.frontend, message)
        message = reply_to(message, ForeignOutcome.GONE)
    if epochs.get(message.caller) != message.caller_epoch:
        return None
    return Delivery(message.caller, message)


def reply_to(call: ForeignCall, outcome: ForeignOutcome, text: str = "") -> ForeignReply:
    """The answer to a call, addressed to who made it."""
    return ForeignReply(
        caller=call.caller,
        caller_epoch=call.caller_epoch,
        call_id=call.call_id,
        outcome=outcome,
        text=text,
    )
