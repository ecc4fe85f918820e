"""Utility calls of a frontend to its engines: each has a deadline, and ends if its engine dies."""

import attrs
import trio

from ...engine.messages import Utility, UtilityCall, UtilityReply
from ...transports.links.channel import Channel, Peer, PeerNotConnected
from ..errors import UtilityFailed

# A process that answers at all answers a utility call between two steps.
UTILITY_TIMEOUT_S = 2.0


@attrs.define(eq=False)
class _PendingCall:
    peer: Peer
    answered: trio.Event = attrs.field(factory=trio.Event)
    reply: UtilityReply | None = None


@attrs.define(eq=False)
class UtilityCalls:
    """The calls that wait for their answers. Bounded by those who wait."""

    _calls: dict[int, _PendingCall] = attrs.field(factory=dict, init=False)
    _next_call: int = attrs.field(default=1, init=False)

    async def call(self, channel: Channel, peer: Peer, utility: Utility, timeout_s: float) -> str:
        """Ask one engine. Raises `UtilityFailed` when it errs, dies, or takes too long."""
        call_id, call = self._next_call, _PendingCall(peer)
        self._next_call += 1
        self._calls[call_id] = call
        try:
            channel.send(peer, UtilityCall(call_id, utility))
            with trio.move_on_after(timeout_s):
                await call.answered.wait()
        except PeerNotConnected as error:
            raise UtilityFailed(str(peer), str(error)) from error
        finally:
            del self._calls[call_id]
        if call.reply is None:
            why = "it died" if call.answered.is_set() else f"no answer within {timeout_s:g} s"
            raise UtilityFailed(str(peer), why)
        if call.reply.error:
            raise UtilityFailed(str(peer), call.reply.error)
        return call.reply.result

    def handle_reply(self, peer: Peer, reply: UtilityReply) -> None:
        """An answer; one that is late, or of another engine, is dropped."""
        call = self._calls.get(reply.call_id)
        if call is not None and call.peer == peer:
            call.reply = reply
            call.answered.set()

    def handle_gone(self, peer: Peer) -> None:
        """This engine answers no more."""
        for call in self._calls.values():
            if call.peer == peer:
                call.answered.set()
