"""Calls between frontends by way of the root, and readers of streams that other frontends have.

An id of a stream names its frontend. Another frontend's call goes to the root, which passes it on
by rank, and the reply comes back the same way; the owner checks the principal, so that another's
stream does not exist for the caller here either. Parts of a stream that runs are fetched in
batches, each behind the position that came last.

Callers wait for a bounded time. An owner that is between two lives, or dies with the call in hand,
is no answer: its successor has the stream, and is asked. Each verb may be repeated: most only
read, what is cancelled stays so, and what is not found when it is to be deleted again is deleted.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

import attrs
import msgspec
import trio

from ...nurseries.tasks.changes import Changes
from ...runtime.fleet.membership import reply_to
from ...runtime.messages import (
    ForeignCall,
    ForeignOutcome,
    ForeignReply,
    ForeignVerb,
    FrontendStates,
)
from ...transports.codec import MessageTooLarge
from ..errors import (
    SERVER_ERROR,
    ApiError,
    completion_not_found,
    internal_error,
    no_answer,
    response_not_found,
)
from ..openai.response_id import frontend_of

logger = logging.getLogger(__name__)
# The time of all calls over control channels: a process in a long call cannot answer sooner.
CALL_S = 2.0
# How long a caller waits, successors included, as long as for an engine (`--replay-wait`). A warm
# spare adopts within a second; one with thousands of streams on a busy machine takes three, and may
# be killed again meanwhile, five times in 10 s (seen). Above that clients ask again themselves.
ADOPTION_WAIT_S = 30.0
# Calls that wait here for a reply, and replies that wait here for an end; others wait for these.
CALLS_MAX = 256
Send = Callable[[ForeignCall | ForeignReply], Awaitable[None]]
CarryOut = Callable[[ForeignCall], Awaitable[Any]]
Answer = TypeVar("Answer")
Piece = TypeVar("Piece")


@attrs.define(eq=False)
class _Attempt:
    """Sending of a call to one life of the owner."""

    frontend: int
    epoch: int
    # Set when there is a reply, or that life is over.
    over: trio.Event = attrs.field(factory=trio.Event, init=False)
    reply: ForeignReply | None = attrs.field(default=None, init=False)


@attrs.define(eq=False)
class ForeignStreams:
    """Streams of the other frontends, for a frontend process of this `rank` and `epoch`, of so many
    `frontends`. `send` goes to the root, None where there is none."""

    rank: int = 0
    frontends: int = 1
    epoch: int = 0
    send: Send | None = None
    # Carries out calls to this frontend itself.
    carry_out: CarryOut | None = attrs.field(default=None, init=False)
    _states: FrontendStates = attrs.field(factory=FrontendStates, init=False)
    _changed: Changes = attrs.field(factory=Changes, init=False)
    _calling: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(CALLS_MAX), init=False
    )
    # {call id: attempt}
    _attempts: dict[int, _Attempt] = attrs.field(factory=dict, init=False)
    _call_ids: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _answering: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(CALLS_MAX), init=False
    )

    def is_given_up(self, frontend: int) -> bool:
        """Whether what this frontend had is lost."""
        return frontend in self._states.failed

    def is_foreign(self, stream_id: str) -> bool:
        """Whether another frontend of this server drew this id."""
        return self._owner_of(stream_id) != self.rank

    def _owner_of(self, stream_id: str) -> int:
        rank = frontend_of(stream_id)
        return rank if rank is not None and rank < self.frontends else self.rank

    # ---- calls

    async def call(
        self,
        verb: ForeignVerb,
        stream_id: str,
        principal: str,
        starting_after: int | str | None = None,
        *,
        text: str = "",
        frontend: int | None = None,
        kind: type[Answer],
    ) -> Answer:
        """Call `carry_out` in the frontend that has the stream, or in this one.

        Raises `ApiError`: 404, the owner's refusal, or 503 when it is given up, or silent.
        """
        call = ForeignCall(
            caller=self.rank,
            caller_epoch=self.epoch,
            call_id=0,
            frontend=self._owner_of(stream_id) if frontend is None else frontend,
            verb=verb,
            response_id=stream_id,
            principal=principal,
            starting_after=starting_after,
            text=text,
        )
        if call.frontend == self.rank:
            assert self.carry_out is not None
            found: Answer = await self.carry_out(call)
            return found
        with trio.move_on_after(ADOPTION_WAIT_S):
            async with self._calling:
                return _answer_in(await self._ask(call), call, kind)
        raise _unreachable()

    async def _ask(self, call: ForeignCall) -> ForeignReply:
        """Ask each life of the owner until one replies. Raises `ApiError` if there will be none."""
        is_repeated = False
        while True:
            epoch = await self._wait_up(call.frontend)
            call = attrs.evolve(call, call_id=next(self._call_ids))
            if (reply := await self._attempt(call, epoch)) is not None:
                break
            is_repeated = True
        is_missing = reply.outcome is ForeignOutcome.NOT_FOUND
        if is_repeated and is_missing and call.verb is ForeignVerb.DELETE:
            return reply_to(call, ForeignOutcome.FOUND, "{}")  # by the life that could not reply
        return reply

    async def _wait_up(self, frontend: int) -> int:
        """The epoch of the owner, when it is up. Raises `ApiError` if it is given up."""
        while (epoch := self._states.ready.get(frontend)) is None:
            if self.is_given_up(frontend):
                raise _unreachable()
            await self._changed.wait()
        return epoch

    async def _attempt(self, call: ForeignCall, epoch: int) -> ForeignReply | None:
        """The reply of this life; None if it ends, or is silent."""
        assert self.send is not None
        attempt = self._attempts[call.call_id] = _Attempt(call.frontend, epoch)
        try:
            with trio.move_on_after(CALL_S):
                await self.send(call)
                await attempt.over.wait()
        finally:
            del self._attempts[call.call_id]
        return attempt.reply

    def handle_reply(self, reply: ForeignReply) -> None:
        """The reply to a call of ours; a late one, or one to an earlier epoch, is dropped."""
        attempt = self._attempts.get(reply.call_id)
        if attempt is not None and reply.caller_epoch == self.epoch:
            attempt.reply = reply
            attempt.over.set()

    def handle_frontends(self, states: FrontendStates) -> None:
        """Frontends came up or are gone; what those had in hand will not be replied to."""
        self._states = states
        self._changed.notify()
        for attempt in self._attempts.values():
            if states.ready.get(attempt.frontend) != attempt.epoch:
                attempt.over.set()

    # ---- replies

    async def answer(self, call: ForeignCall, carry_out: CarryOut) -> None:
        """Carry out another frontend's call and reply; nothing when it has given up by now.

        A failure is replied as well: this runs beside all that this frontend serves. Raises
        `BrokenResourceError` when the root is gone. Cancellation: no reply.
        """
        assert self.send is not None
        with trio.move_on_after(CALL_S):
            async with self._answering:
                reply = await _answer_of(call, carry_out)
                try:
                    await self.send(reply)
                except MessageTooLarge:
                    await self.send(_refused(call, _too_large()))


@attrs.frozen
class StreamBatch:
    """Parts of a stream, the position behind the last of them, and whether that is the end."""

    parts: list[Any]
    position: int | str | None
    is_last: bool


@attrs.define(eq=False)
class ForeignReader(Generic[Piece]):
    """Reads a stream of another frontend, batch by batch; as a `StreamReader`, but notices of what
    happened to the request are not passed on, and it does not keep the stream from ending.
    """

    foreign: ForeignStreams
    # How more of this surface is asked for, and what is taken of parts.
    verb: ForeignVerb
    join: Callable[[list[Any]], Piece]
    stream_id: str
    principal: str
    # The position behind what was taken.
    position: Any
    # Set when everything has been taken.
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    # The batch that was fetched and not taken, and the position behind it.
    _parts: list[Any] = attrs.field(factory=list, init=False)
    _next_position: Any = attrs.field(init=False)
    _is_last: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._next_position = self.position

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something now."""
        return bool(self._parts)

    def wake_up(self) -> None:
        """Do nothing: the owner answers in a moment, if only that nothing has come."""

    async def wait_ready(self) -> None:
        """Return when there is something to take, all was taken, or nothing has come for a moment.

        Raises `ApiError`.
        """
        if not (self._parts or self._is_last):
            named = (self.verb, self.stream_id, self.principal, self.position)
            batch = await self.foreign.call(*named, kind=StreamBatch)
            self._parts, self._is_last = batch.parts, batch.is_last
            self._next_position = batch.position
        if not self._parts:  # all that has come is silent
            self.position = self._next_position
            if self._is_last:
                self.done.set()

    def take(self, _size_max: int | None = None) -> Piece:
        """The batch that waits; the owner has bounded its size."""
        parts, self._parts = self._parts, []
        self.position = self._next_position
        if self._is_last:
            self.done.set()
        return self.join(parts)


def _answer_in(reply: ForeignReply, call: ForeignCall, kind: type[Answer]) -> Answer:
    """Answer in a reply. Raises `ApiError`."""
    if reply.outcome is ForeignOutcome.NOT_FOUND:
        is_chunks = call.verb is ForeignVerb.CHUNKS
        raise (completion_not_found if is_chunks else response_not_found)(call.response_id)
    if reply.outcome is ForeignOutcome.REFUSED:
        raise msgspec.json.decode(reply.text, type=ApiError)
    return msgspec.json.decode(reply.text, type=kind)


async def _answer_of(call: ForeignCall, carry_out: CarryOut) -> ForeignReply:
    try:
        found = await carry_out(call)
        text = msgspec.json.encode(found).decode()
    except ApiError as error:
        if error.status == 404:
            return reply_to(call, ForeignOutcome.NOT_FOUND)
        return _refused(call, error)
    except Exception as failure:
        logger.error("a call of another frontend failed", exc_info=failure)
        return _refused(call, internal_error())
    return reply_to(call, ForeignOutcome.FOUND, text)


def _refused(call: ForeignCall, error: ApiError) -> ForeignReply:
    return reply_to(call, ForeignOutcome.REFUSED, msgspec.json.encode(error).decode())


def _unreachable() -> ApiError:
    return no_answer("The frontend that has this response", "response_unreachable")


def _too_large() -> ApiError:
    return ApiError(
        500,
        "The response is too large to be sent by another frontend than its own; ask again by"
        " another connection",
        "response_too_large",
        SERVER_ERROR,
    )
