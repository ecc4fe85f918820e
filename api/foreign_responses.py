"""Responses of the other frontends of this server: asked for by id, and answered for by ours.

An id names its frontend. The question goes to the root, which passes it on by rank, and the answer
comes back the same way; the owner checks the principal, so that another's response does not exist
for the caller here either. Whoever asks waits for a bounded time. Must not know protocols, nor how
the root finds a frontend.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterator

import attrs
import msgspec
import trio

from ..runtime.foreign_calls import reply_to
from ..runtime.messages import ForeignCall, ForeignOutcome, ForeignReply, ForeignVerb
from .errors import RETRY_AFTER_ENGINE_S, SERVER_ERROR, ApiError
from .fields import JsonObject
from .response_id import frontend_of
from .response_registry import ResponseRegistry, response_not_found

# As for all that is asked over control channels: a process in a long call cannot answer sooner.
CALL_S = 2.0
# Questions that wait here for an answer, and answers that wait here for an end.
CALLS_MAX = 256
Send = Callable[[ForeignCall | ForeignReply], Awaitable[None]]


async def _send_nothing(message: ForeignCall | ForeignReply) -> None:
    """For a frontend that is alone."""
    raise AssertionError(f"{message} has nowhere to go")


@attrs.define(eq=False)
class _Waiting:
    """One call under way."""

    arrived: trio.Event = attrs.field(factory=trio.Event)
    reply: ForeignReply | None = None


@attrs.define(eq=False)
class ForeignResponses:
    """One per frontend process. `rank` of `frontends` is ours, in this `epoch`; `send` goes to the
    root. With one frontend nothing is foreign.
    """

    rank: int = 0
    frontends: int = 1
    epoch: int = 0
    send: Send = _send_nothing
    _calls: dict[int, _Waiting] = attrs.field(factory=dict, init=False)
    _call_ids: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _answering: int = attrs.field(default=0, init=False)

    def is_foreign(self, response_id: str) -> bool:
        """Whether another frontend of this server drew this id."""
        frontend = frontend_of(response_id)
        return frontend is not None and frontend != self.rank and frontend < self.frontends

    # ---- asking

    async def get(self, response_id: str, principal: str) -> JsonObject:
        """The response as it is now. Raises `ApiError` 404, or 503 when its frontend is silent."""
        return await self._call(ForeignVerb.GET, response_id, principal)

    async def cancel(self, response_id: str, principal: str) -> JsonObject:
        """Cancel it; the final object. Raises as `get`. Sent again, it does no harm."""
        return await self._call(ForeignVerb.CANCEL, response_id, principal)

    async def _call(self, verb: ForeignVerb, response_id: str, principal: str) -> JsonObject:
        frontend = frontend_of(response_id)
        assert frontend is not None
        if len(self._calls) >= CALLS_MAX:
            raise _unreachable()
        call = ForeignCall(
            caller=self.rank,
            caller_epoch=self.epoch,
            call_id=next(self._call_ids),
            frontend=frontend,
            verb=verb,
            response_id=response_id,
            principal=principal,
        )
        waiting = self._calls[call.call_id] = _Waiting()
        try:
            with trio.move_on_after(CALL_S):
                await self.send(call)
                await waiting.arrived.wait()
        finally:
            del self._calls[call.call_id]
        reply = waiting.reply
        if reply is None or reply.outcome is ForeignOutcome.GONE:
            raise _unreachable()
        if reply.outcome is ForeignOutcome.NOT_FOUND:
            raise response_not_found(response_id)
        return msgspec.json.decode(reply.text, type=JsonObject)

    def handle_reply(self, reply: ForeignReply) -> None:
        """The answer to a call of ours; a late one, or one to an earlier epoch, finds nobody."""
        waiting = self._calls.get(reply.call_id)
        if waiting is not None and reply.caller_epoch == self.epoch:
            waiting.reply = reply
            waiting.arrived.set()

    # ---- answering

    async def answer(self, call: ForeignCall, registry: ResponseRegistry) -> None:
        """Do what another frontend asks for, and tell it; nothing when it has given up by now.

        Raises `BrokenResourceError` when the root is gone. Cancellation: nothing is told.
        """
        if self._answering >= CALLS_MAX:
            return
        self._answering += 1
        try:
            with trio.move_on_after(CALL_S):
                await self.send(await _answer_of(call, registry))
        finally:
            self._answering -= 1


async def _answer_of(call: ForeignCall, registry: ResponseRegistry) -> ForeignReply:
    try:
        match call.verb:
            case ForeignVerb.GET:
                response = registry.get(call.response_id, call.principal)
            case ForeignVerb.CANCEL:
                reason = "cancelled by way of another frontend"
                response = await registry.cancel_and_wait(call.response_id, call.principal, reason)
    except ApiError:
        return reply_to(call, ForeignOutcome.NOT_FOUND)
    return reply_to(call, ForeignOutcome.FOUND, msgspec.json.encode(response).decode())


def _unreachable() -> ApiError:
    return ApiError(
        503,
        "The frontend that has this response does not answer; ask again",
        "response_unreachable",
        SERVER_ERROR,
        retry_after_s=RETRY_AFTER_ENGINE_S,
    )
