"""Responses of the other frontends of this server: asked for by id, and answered for by ours.

An id names its frontend. The question goes to the root, which passes it on by rank, and the answer
comes back the same way; the owner checks the principal, so that another's response does not exist
for the caller here either. Whoever asks waits for a bounded time: events of a response that runs
are fetched in batches, each behind the number that came last. Must not know protocols, nor how the
root finds a frontend.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator

import attrs
import msgspec
import trio

from ...runtime.messages import (
    ControlCall,
    ForeignCall,
    ForeignOutcome,
    ForeignReply,
    ForeignVerb,
    RootCall,
    RootReply,
)
from ...runtime.processes.membership import reply_to
from ...transports.codec import MessageTooLarge
from ..errors import RETRY_AFTER_ENGINE_S, SERVER_ERROR, ApiError, internal_error
from ..openai.response_events import Event, event_of
from ..openai.response_id import frontend_of
from ..schema.fields import JsonObject
from .history import Conversation
from .response import Response
from .store import ResponseStore, response_not_found

logger = logging.getLogger(__name__)
# As for all that is asked over control channels: a process in a long call cannot answer sooner.
CALL_S = 2.0
# The root gathers for two seconds at most; a second more for the way.
ROOT_CALL_S = 3.0
# Questions that wait here for an answer, and answers that wait here for an end.
CALLS_MAX = 256
# How long the owner waits for further events before it says that there are none yet.
EVENTS_WAIT_S = 1.0
# Of one batch of events; a lane's buffer has as many.
BATCH_CHARACTERS_MAX = 64 * 2**10
Send = Callable[[ForeignCall | ForeignReply], Awaitable[None]]


async def _send_nothing(message: ForeignCall | ForeignReply) -> None:
    """For a frontend that is alone."""
    raise AssertionError(f"{message} has nowhere to go")


@attrs.define(eq=False)
class _Waiting:
    """One call under way."""

    arrived: trio.Event = attrs.field(factory=trio.Event)
    reply: ForeignReply | None = None


@attrs.frozen
class EventBatch:
    """Some events of one response, and whether they were the last."""

    events: list[Event]
    is_last: bool


@attrs.frozen
class _Refusal:
    """An `ApiError` on its way."""

    status: int
    message: str
    code: str
    type: str
    param: str | None
    retry_after_s: float | None


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

    # ---- asking; all raise `ApiError`: 404, the owner's refusal, or 503 when it is silent

    async def get(self, response_id: str, principal: str) -> JsonObject:
        """The response as it is now."""
        return await self._call(ForeignVerb.GET, response_id, principal)

    async def cancel(self, response_id: str, principal: str) -> JsonObject:
        """Cancel it; the final object. Sent again, it does no harm."""
        return await self._call(ForeignVerb.CANCEL, response_id, principal)

    async def delete(self, response_id: str, principal: str) -> None:
        """Forget it."""
        await self._call(ForeignVerb.DELETE, response_id, principal)

    async def input_of(self, response_id: str, principal: str) -> Conversation:
        """What it was given."""
        said = await self._call(ForeignVerb.INPUT, response_id, principal)
        return msgspec.convert(said, Conversation)

    async def conversation_of(self, response_id: str, principal: str) -> Conversation:
        """What it was given and what it said."""
        said = await self._call(ForeignVerb.CONVERSATION, response_id, principal)
        return msgspec.convert(said, Conversation)

    def reader(
        self, response_id: str, principal: str, starting_after: int | None
    ) -> "ForeignReader":
        """A reader of its events; the first `wait_ready` finds out whether there are any."""
        return ForeignReader(self, response_id, principal, starting_after)

    async def events_after(
        self, response_id: str, principal: str, starting_after: int | None
    ) -> "EventBatch":
        """The next events; an empty batch when none came for a moment."""
        said = await self._call(ForeignVerb.EVENTS, response_id, principal, starting_after)
        return msgspec.convert(said, EventBatch)

    async def _call(
        self,
        verb: ForeignVerb,
        response_id: str,
        principal: str,
        starting_after: int | None = None,
    ) -> JsonObject:
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
            starting_after=starting_after,
        )
        return _object_of(await self._reply_to(call), response_id)

    async def _reply_to(self, call: ForeignCall) -> ForeignReply | None:
        waiting = self._calls[call.call_id] = _Waiting()
        try:
            with trio.move_on_after(CALL_S):
                await self.send(call)
                await waiting.arrived.wait()
        finally:
            del self._calls[call.call_id]
        return waiting.reply

    def handle_reply(self, reply: ForeignReply) -> None:
        """The answer to a call of ours; a late one, or one to an earlier epoch, finds nobody."""
        waiting = self._calls.get(reply.call_id)
        if waiting is not None and reply.caller_epoch == self.epoch:
            waiting.reply = reply
            waiting.arrived.set()

    # ---- answering

    async def answer(self, call: ForeignCall, store: ResponseStore) -> None:
        """Do what another frontend asks for, and tell it; nothing when it has given up by now.

        Whatever goes wrong with the answer itself is one more answer: this runs beside all that
        this frontend serves. Raises `BrokenResourceError` when the root is gone. Cancellation:
        nothing is told.
        """
        if self._answering >= CALLS_MAX:
            return
        self._answering += 1
        try:
            with trio.move_on_after(CALL_S):
                reply = await _answer_of(call, store)
                try:
                    await self.send(reply)
                except MessageTooLarge:
                    await self.send(_refused(call, _too_large()))
        finally:
            self._answering -= 1


@attrs.define(eq=False)
class ForeignReader:
    """Reads a response of another frontend, batch by batch; as `ResponseReader`, but notices of
    what happened to the request are not passed on, and it does not keep a response from ending.
    """

    foreign: ForeignResponses
    response_id: str
    principal: str
    starting_after: int | None
    # Set when everything has been taken.
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    # The batch that was fetched and not taken.
    _events: list[Event] = attrs.field(factory=list, init=False)
    _is_last: bool = attrs.field(default=False, init=False)

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something now."""
        return bool(self._events)

    async def wait_ready(self) -> None:
        """Return when there is something to take, or all was taken. Raises `ApiError`."""
        while not self._events and not self._is_last:
            batch = await self.foreign.events_after(
                self.response_id, self.principal, self.starting_after
            )
            self._events, self._is_last = batch.events, batch.is_last
        if not self._events:
            self.done.set()

    def take(self, characters_max: int) -> list[Event]:
        """The batch that waits; its size is the relay's affair."""
        events, self._events = self._events, []
        if events:
            number = events[-1]["sequence_number"]
            assert isinstance(number, int)
            self.starting_after = number
        if self._is_last:
            self.done.set()
        return events


def _object_of(reply: ForeignReply | None, response_id: str) -> JsonObject:
    """What a reply says. Raises `ApiError`."""
    if reply is None or reply.outcome is ForeignOutcome.GONE:
        raise _unreachable()
    if reply.outcome is ForeignOutcome.NOT_FOUND:
        raise response_not_found(response_id)
    if reply.outcome is ForeignOutcome.REFUSED:
        raise ApiError(**attrs.asdict(msgspec.json.decode(reply.text, type=_Refusal)))
    return msgspec.json.decode(reply.text, type=JsonObject)


async def _answer_of(call: ForeignCall, store: ResponseStore) -> ForeignReply:
    try:
        found = msgspec.json.encode(await _do(call, store)).decode()
    except ApiError as error:
        if error.status == 404:
            return reply_to(call, ForeignOutcome.NOT_FOUND)
        return _refused(call, error)
    except Exception as failure:
        logger.error("a call of another frontend failed; only it is told", exc_info=failure)
        return _refused(call, internal_error())
    return reply_to(call, ForeignOutcome.FOUND, found)


def _refused(call: ForeignCall, error: ApiError) -> ForeignReply:
    refusal = _Refusal(
        error.status, error.message, error.code, error.type, error.param, error.retry_after_s
    )
    return reply_to(call, ForeignOutcome.REFUSED, msgspec.json.encode(refusal).decode())


async def _do(call: ForeignCall, store: ResponseStore) -> object:
    response_id, principal = call.response_id, call.principal
    match call.verb:
        case ForeignVerb.GET:
            return store.get(response_id, principal)
        case ForeignVerb.CANCEL:
            reason = "cancelled by way of another frontend"
            return await store.cancel(response_id, principal, reason).wait_ended()
        case ForeignVerb.DELETE:
            store.delete(response_id, principal)
            return {}
        case ForeignVerb.INPUT:
            return store.find(response_id, principal).conversation
        case ForeignVerb.CONVERSATION:
            return store.conversation_of(response_id, principal)
        case ForeignVerb.EVENTS:
            return await _events_of(store.find(response_id, principal), call.starting_after)


async def _events_of(response: Response, starting_after: int | None) -> EventBatch:
    """What has come after this number, or comes in a moment."""
    with response.reading(starting_after, with_notices=False) as reader:
        with trio.move_on_after(EVENTS_WAIT_S):
            await reader.wait_ready()
        events = [event_of(part) for part in reader.take(BATCH_CHARACTERS_MAX)]
        return EventBatch(events, reader.done.is_set())


def _unreachable() -> ApiError:
    return _no_answer("The frontend that has this response", "response_unreachable")


def _too_large() -> ApiError:
    return ApiError(
        500,
        "The response is too large to be told by another frontend than its own; ask again by"
        " another connection",
        "response_too_large",
        SERVER_ERROR,
    )


# ---- questions to the root itself


@attrs.define(eq=False)
class RootCalls:
    """Questions of admins to the root, one at a time; what commands ask over its own socket.

    One per frontend process; `send` goes to the root, None where there is none.
    """

    send: Callable[[RootCall], Awaitable[None]] | None = None
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _call_id: int = attrs.field(default=0, init=False)
    _reply: RootReply | None = attrs.field(default=None, init=False)
    _arrived: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def ask(self, call: ControlCall) -> str:
        """The root's answer, as JSON text. Raises `ApiError` 503 when there is none in time."""
        if self.send is not None:
            with trio.move_on_after(ROOT_CALL_S):
                async with self._lock:
                    self._call_id += 1
                    self._arrived = trio.Event()
                    await self.send(RootCall(self._call_id, call))
                    await self._arrived.wait()
                    assert self._reply is not None
                    return self._reply.text
        raise _no_answer("The root of this server", "root_unreachable")

    def handle_reply(self, reply: RootReply) -> None:
        """The root's answer; a late one is dropped."""
        if reply.call_id == self._call_id:
            self._reply = reply
            self._arrived.set()


def _no_answer(party: str, code: str) -> ApiError:
    return ApiError(
        503,
        f"{party} does not answer; ask again",
        code,
        SERVER_ERROR,
        retry_after_s=RETRY_AFTER_ENGINE_S,
    )
