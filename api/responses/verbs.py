"""What frontends ask each other, of responses and of idempotency keys, carried out here."""

import time
from typing import Any

import attrs
import msgspec
import trio

from ...runtime.messages import ForeignVerb
from ..errors import ApiError
from ..openai.response_events import Event, event_of
from .claims import Claim, ClaimCall, Standing
from .executions import Execution, ExecutionCall
from .history import Conversation
from .response import Response
from .store import ResponseStore

# How long the owner waits for further events before it answers that there are none yet.
EVENTS_WAIT_S = 1.0
# A failure with this status is no answer: the next request with its key is executed.
COME_AGAIN = 503
# Of one batch of events; a lane's buffer has as many.
BATCH_CHARACTERS_MAX = 64 * 2**10


@attrs.frozen
class EventBatch:
    """Some events of one response, and whether they were the last."""

    events: list[Event]
    is_last: bool


@attrs.frozen
class ChunkBatch:
    """Some frames of one completion, the id of the last one, and whether they were the last."""

    frames: str
    position: str | None
    is_last: bool


# What a call brings, where it is not an object.
ANSWERS: dict[ForeignVerb, Any] = {
    ForeignVerb.INPUT: Conversation,
    ForeignVerb.CONVERSATION: Conversation,
    ForeignVerb.EVENTS: EventBatch,
    ForeignVerb.CHUNKS: ChunkBatch,
    ForeignVerb.CLAIM: Claim,
    ForeignVerb.EXECUTION: Execution,
}


async def carry_out(
    store: ResponseStore,
    verb: ForeignVerb,
    response_id: str,
    principal: str,
    *,
    starting_after: int | None = None,
    text: str = "",
) -> Any:
    """Do this with a response, or a key, of this frontend: an object, or what `ANSWERS` says.

    Raises `ApiError`.
    """
    match verb:
        case ForeignVerb.GET:
            return store.get(response_id, principal)
        case ForeignVerb.CANCEL:
            response = store.cancel(response_id, principal, "cancelled by its client")
            return await response.wait_ended()
        case ForeignVerb.DELETE:
            store.delete(response_id, principal)
            return {}
        case ForeignVerb.INPUT:
            return store.find(response_id, principal).conversation
        case ForeignVerb.CONVERSATION:
            return store.conversation_of(response_id, principal)
        case ForeignVerb.EVENTS:
            return await _events_of(store.find(response_id, principal), starting_after)
        case ForeignVerb.CLAIM:
            claim = msgspec.json.decode(text, type=ClaimCall)
            return store.claims.handle_claim(claim, time.monotonic_ns())
        case _:
            assert verb is ForeignVerb.EXECUTION
            asked = msgspec.json.decode(text, type=ExecutionCall)
            return await _look_up(store, response_id, principal, asked)


async def _events_of(response: Response, starting_after: int | None) -> EventBatch:
    """What has come after this number, or comes in a moment."""
    with response.reading(starting_after, with_notices=False) as reader:
        with trio.move_on_after(EVENTS_WAIT_S):
            await reader.wait_ready()
        events = [event_of(part) for part in reader.take(BATCH_CHARACTERS_MAX)]
        return EventBatch(events, reader.done.is_set())


async def _look_up(
    store: ResponseStore, response_id: str, principal: str, asked: ExecutionCall
) -> Execution:
    """How it stands when it has begun, or ended, or in a moment."""
    with trio.move_on_after(EVENTS_WAIT_S):
        await store.executions.wait_begun(response_id)
        begun = _find(store, response_id, principal)
        if begun is not None and asked.until_end:
            await begun.wait_ended()
        elif asked.until_end:
            await store.answers.wait_ended(response_id)
    response = _find(store, response_id, principal)  # as it is now: it may just have begun
    if response is None:
        answer = store.answers.execution_of(response_id, principal)
        if answer is not None:
            return answer
        return store.executions.execution_of(response_id, asked.epoch, time.monotonic_ns())
    ending = response.record.ending
    if ending is None:
        return Execution(standing=Standing.RUNNING)
    if ending.error is not None and ending.error.status == COME_AGAIN:
        return Execution(standing=Standing.UNKNOWN)
    if ending.error is not None:
        return Execution(standing=Standing.ENDED, error=ending.error)
    return Execution(standing=Standing.ENDED, response=response.record.snapshot())


def _find(store: ResponseStore, response_id: str, principal: str) -> Response | None:
    try:
        return store.find(response_id, principal)
    except ApiError:
        return None
