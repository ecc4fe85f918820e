"""HTTP routes that generate: `POST /v1/responses`, its get and cancel, `POST /v1/chat/completions`.

Thin shells: bodies are validated, events and chunks built by pure modules; here is the waiting.
A client that leaves while it is answered cancels its generation. Must not know heads or framing.
"""

import time

from ..engine.errors import EngineError
from ..engine.messages import FinishReason
from ..runtime.generation import GenerationStream
from .application import Application
from .chat import ChatAnswer
from .chat_request import FIELD_NAMES, ChatRequest, read_chat_request
from .errors import ApiError, engine_error, to_api_error
from .fields import decode_object
from .http import HttpConnection
from .response_run import RunResult, draw_id, run_response
from .responses import Event
from .responses_request import ResponseRequest, read_response_request
from .sse import DONE, data_frame, event_frame

Parameters = dict[str, str]


async def create_response(
    connection: HttpConnection, application: Application, principal: str, _: Parameters
) -> None:
    """`POST /v1/responses`, streamed or whole. Raises `ApiError` before the answer has begun."""
    application.check_accepting()
    body = decode_object(await connection.read_body())
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


async def create_chat_completion(
    connection: HttpConnection, application: Application, principal: str, _: Parameters
) -> None:
    """`POST /v1/chat/completions`. Raises `ApiError` before the answer has begun."""
    application.check_accepting()
    body = decode_object(await connection.read_body())
    request = read_chat_request(body, model=application.generator.model_name)
    answer = ChatAnswer(
        completion_id=draw_id("chatcmpl"),
        created=int(time.time()),
        model=application.generator.model_name,
        with_token_ids=request.options.token_ids,
    )
    try:
        async with connection.cancel_when_client_leaves():
            async with application.generator.generate(
                request.prompt,
                request.sampling,
                request_id=answer.completion_id,
                principal=principal,
                cache_salt=request.options.cache_salt,
                priority=request.options.priority,
                streaming=request.stream,
            ) as stream:
                if request.stream:
                    await _stream_chat(connection, answer, request, stream)
                    return
                await stream.collect()
            if stream.finish_reason is FinishReason.ERROR:
                raise engine_error()
            await connection.answer_json(200, answer.completion(stream))
    except EngineError as error:
        raise to_api_error(error, FIELD_NAMES) from error


async def _stream_chat(
    connection: HttpConnection, answer: ChatAnswer, request: ChatRequest, stream: GenerationStream
) -> None:
    """Send chunks as tokens come. A failure within becomes an error event, which SDKs raise."""
    await connection.start_events()
    await connection.send_events(data_frame(answer.opening()))
    try:
        async for output in stream:
            if output.finish_reason is FinishReason.ERROR:
                await connection.send_events(data_frame(engine_error().body()))
                await connection.end_events()
                return
            chunks = answer.chunks(output)
            if chunks:
                await connection.send_events(b"".join([data_frame(chunk) for chunk in chunks]))
    except EngineError as error:
        await connection.send_events(data_frame(to_api_error(error, FIELD_NAMES).body()))
        await connection.end_events()
        return
    last = data_frame(answer.usage_chunk(stream.usage)) if request.include_usage else b""
    await connection.send_events(last + DONE)
    await connection.end_events()
