"""Runs one response: from the admitted request to its terminal event, for HTTP and WebSocket alike.

The builder says which events there are, the generator which tokens, the caller's `emit` where they
go and how long that takes. Must not know frames, lanes or status lines.
"""

import secrets
import time
from collections.abc import Awaitable, Callable

import attrs

from ..engine.errors import EngineError
from ..engine.messages import FinishReason
from ..runtime.generation import GenerationStream
from .application import Application
from .errors import ApiError, engine_error, to_api_error
from .fields import JsonObject
from .response_id import response_id_of
from .response_registry import ActiveResponse
from .responses import Event, ResponseEvents, ResponseIdentity
from .responses_request import FIELD_NAMES, ResponseRequest

Emit = Callable[[list[Event]], Awaitable[None]]


def draw_id(prefix: str) -> str:
    """A new id: 128 random bits, so that nobody guesses another's."""
    return f"{prefix}_{secrets.token_hex(16)}"


@attrs.frozen
class RunResult:
    """How a response ended: its final object, and the error if it failed."""

    response: JsonObject
    error: ApiError | None = None


async def run_response(
    application: Application,
    request: ResponseRequest,
    principal: str,
    *,
    emit: Emit,
    streaming: bool = True,
    on_started: Callable[[ActiveResponse], None] | None = None,
) -> RunResult:
    """Generate, emitting every event; waits for `emit` before it takes more from the engine.

    Raises: `ApiError` before the first event, when the request is not admitted; afterwards only
    what `emit` raises. Cancellation: the request is aborted, the response ends as cancelled.
    """
    identity = ResponseIdentity(
        response_id=response_id_of(application.foreign.rank, secrets.token_hex(16)),
        item_id=draw_id("msg"),
        created_at=int(time.time()),
        model=application.generator.model_name,
    )
    events = ResponseEvents(identity, request)
    options = request.options
    application.check_accepting()
    opening = application.generator.generate(
        request.prompt,
        request.sampling,
        request_id=identity.response_id,
        principal=principal,
        cache_salt=options.cache_salt,
        priority=options.priority,
        streaming=streaming,
    )
    try:
        async with opening as stream:
            active = ActiveResponse(
                identity.response_id, principal, lambda: events.snapshot("in_progress")
            )
            if on_started is not None:
                on_started(active)
            return await _run_admitted(application, events, active, stream, emit=emit)
    except EngineError as error:  # of admission alone: those of the stream become its end
        raise to_api_error(error, FIELD_NAMES) from error


async def _run_admitted(
    application: Application,
    events: ResponseEvents,
    active: ActiveResponse,
    stream: GenerationStream,
    *,
    emit: Emit,
) -> RunResult:
    application.registry.add(active)
    final: JsonObject | None = None
    try:
        await emit(events.begin())
        ending, error = await _generate(events, active, stream, emit)
        final = _response_of(ending[-1])
    finally:
        # Those who wait for the end need not wait for a slow writer.
        application.registry.end(active, final or events.snapshot("cancelled"))
    await emit(ending)
    return RunResult(final, error)


async def _generate(
    events: ResponseEvents, active: ActiveResponse, stream: GenerationStream, emit: Emit
) -> tuple[list[Event], ApiError | None]:
    """Emit all deltas but the last; return the last events, and the error if that is the end."""
    while True:
        try:
            output = await active.next_output(stream)
        except EngineError as error:
            api_error = to_api_error(error, FIELD_NAMES)
            return events.fail(api_error, stream.usage), api_error
        if output is None:
            return events.cancel(stream.usage), None
        deltas = events.output(output)
        if output.finish_reason is FinishReason.ERROR:
            api_error = engine_error()
            return [*deltas, *events.fail(api_error, stream.usage)], api_error
        if output.finish_reason is not None:
            return [*deltas, *events.finish(output.finish_reason, stream.usage)], None
        if deltas:
            await emit(deltas)


def _response_of(terminal: Event) -> JsonObject:
    response = terminal["response"]
    assert isinstance(response, dict)
    return response
