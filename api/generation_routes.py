"""HTTP routes of Responses: `POST /v1/responses`, its get and cancel.

Thin shells: bodies are validated, events built by pure modules; here is the waiting.
A client that leaves while it is answered cancels its generation. Must not know heads or framing.
"""

from .application import Application
from .errors import ApiError
from .http import HttpConnection
from .response_run import RunResult, run_response
from .responses import Event
from .responses_request import ResponseRequest, read_response_request
from .sse import event_frame

Parameters = dict[str, str]


async def create_response(
    connection: HttpConnection, application: Application, principal: str, _: Parameters
) -> None:
    """`POST /v1/responses`, streamed or whole. Raises `ApiError` before the answer has begun."""
    application.check_accepting()
    body = await connection.read_json()
    request = read_response_request(body, model=application.generator.model_name)
    if request.stream:
        await _stream_response(connection, application, principal, request)
        return

    async def ignore(events: list[Event]) -> None:
        """Nobody reads the events of a whole answer."""

    result: RunResult | None = None
    async with connection.cancel_when_client_leaves():
        result = await run_response(application, request, principal, emit=ignore, streaming=False)
    if connection.is_gone:
        return
    assert result is not None
    if result.error is not None:
        raise result.error
    await connection.answer_json(200, result.response)


async def _stream_response(
    connection: HttpConnection, application: Application, principal: str, request: ResponseRequest
) -> None:
    async def emit(events: list[Event]) -> None:
        if not connection.status:
            await connection.start_events()
        await connection.send_events(b"".join([event_frame(event) for event in events]))

    async with connection.cancel_when_client_leaves():
        await run_response(application, request, principal, emit=emit)
        await connection.end_events()


async def get_response(
    connection: HttpConnection, application: Application, principal: str, parameters: Parameters
) -> None:
    """`GET /v1/responses/{id}`: one that runs, or that has just ended, on whatever frontend."""
    assert connection.request is not None
    if connection.request.query_value("stream") == "true":
        raise ApiError(400, "Streams are not resumed yet", "unsupported_parameter", param="stream")
    response_id = parameters["id"]
    if application.foreign.is_foreign(response_id):
        response = await application.foreign.get(response_id, principal)
    else:
        response = application.registry.get(response_id, principal)
    await connection.answer_json(200, response)


async def cancel_response(
    connection: HttpConnection, application: Application, principal: str, parameters: Parameters
) -> None:
    """`POST /v1/responses/{id}/cancel`: idempotent; answers the final object with its output."""
    response_id, registry = parameters["id"], application.registry
    if application.foreign.is_foreign(response_id):
        final = await application.foreign.cancel(response_id, principal)
    else:
        final = await registry.cancel_and_wait(response_id, principal, "cancelled by HTTP")
    await connection.answer_json(200, final)
