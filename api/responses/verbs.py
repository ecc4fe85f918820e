"""What frontends ask each other, of responses and of idempotency keys, carried out here."""

import time
from functools import partial
from typing import Any

import attrs
import msgspec
import trio

from ...runtime.messages import ForeignVerb
from ..errors import ApiError
from ..openai.response_events import Event, event_of
from .claims import Claim, ClaimCall
from .executions import Execution, ExecutionCall
from .history import Conversation
from .recomputed import catch_up
from .response import Response
from .store import ResponseStore

# How long the owner waits for further events before it answers that there are none yet.
EVENTS_WAIT_S = 1.0
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
    position: str
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
            await response.wait_ended()
            return response.record.snapshot()
        case ForeignVerb.DELETE:
            store.delete(response_id, principal)
            return {}
        case ForeignVerb.INPUT:
            return store.find(response_id, principal).conversation
        case ForeignVerb.CONVERSATION:
            return store.conversation_of(response_id, principal)
        case ForeignVerb.EVENTS:
            response = store.find(response_id, principal)
            with trio.move_on_after(EVENTS_WAIT_S) as waiting:
                await catch_up(store, response, starting_after)
            if waiting.cancelled_caught:
                return EventBatch([], is_last=False)
            return await _events_of(response, starting_after)
        case ForeignVerb.CLAIM:
            claim = msgspec.json.decode(text, type=ClaimCall)
            return store.claims.handle_claim(claim, time.monotonic_ns())
        case _:
            assert verb is ForeignVerb.EXECUTION
            asked = msgspec.json.decode(text, type=ExecutionCall)
            found = partial(_find, store, response_id, principal)
            return await store.executions.look_up(response_id, asked, found)


async def _events_of(response: Response, starting_after: int | None) -> EventBatch:
    """What has come after this number, or comes in a moment."""
    with response.reading(starting_after, with_notices=False) as reader:
        with trio.move_on_after(EVENTS_WAIT_S):
            await reader.wait_ready()
        events = [event_of(part) for part in reader.take(BATCH_CHARACTERS_MAX)]
        return EventBatch(events, reader.done.is_set())


def _find(store: ResponseStore, response_id: str, principal: str) -> Response | None:
    try:
        return store.find(response_id, principal)
    except ApiError:
        return None
