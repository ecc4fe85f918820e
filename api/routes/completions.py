"""HTTP routes of chat completions, completions, their streams again, and Anthropic's messages.

Thin shells: bodies are validated, chunks and answers built by pure modules; here is the waiting. A
completion is above its connection, whose client is its first reader (`completions.completion`).
"""

from collections.abc import Callable
from typing import Any

from ...engine.errors import EngineError
from ..anthropic.messages_request import (
    MESSAGES_KIND,
    read_count_request,
    read_messages_request,
)
from ..application import Call
from ..completions.cursor import POSITION_CHARACTERS_MAX
from ..errors import completion_not_found, to_api_error
from ..http.connection import HttpConnection
from ..openai.chat_requests import ChatRequest, read_chat_request
from ..openai.completion_requests import (
    CHAT_KIND,
    COMPLETIONS_KIND,
    CompletionsRequest,
    read_completions_request,
)
from ..schema.fields import JsonObject, TextKind
from ..schema.tables import Field, Query
from .orders import (
    RESUME_HEADERS,
    OrderCall,
    Reader,
    keyed_request,
    position_of,
    send_frames,
)

MESSAGES_PATH = "/v1/messages"
# Position to read a stream on from; see `completions.cursor`.
STREAM_QUERY = Query(
    {
        "starting_after": Field(
            TextKind(characters_max=POSITION_CHARACTERS_MAX),
            "Only events after the one of this id; all without.",
        )
    },
    headers=RESUME_HEADERS,
)


async def create_chat_completion(call: Call) -> None:
    """`POST /v1/chat/completions`: the answer to a conversation, streamed or whole.

    Raises `ApiError` before the answer has begun.
    """
    await _create(call, read_chat_request)


async def create_completion(call: Call) -> None:
    """`POST /v1/completions`: what follows a text, or each of a batch of texts, streamed or whole.

    All prompts of a batch run at the same time; when one fails, all of them do. Raises `ApiError`
    before the answer has begun.
    """
    call.check_accepting()
    body = await call.read_order()
    request = read_completions_request(body, model=call.application.generator.model_name)
    await _answer(call, request, body)


async def create_message(call: Call) -> None:
    """`POST /v1/messages`: the answer to a conversation in Anthropic's protocol, streamed or whole.

    Raises `ApiError` before the answer has begun.
    """
    await _create(call, read_messages_request)


async def count_message_tokens(call: Call) -> None:
    """`POST /v1/messages/count_tokens`: how many tokens the prompt of a message has."""
    application = call.application
    generator, body = application.generator, await call.read_body()
    prompt = read_count_request(
        body, model=generator.model_name, answer_format=application.answer_format
    )
    try:
        tokens = await generator.tokenize(
            prompt, add_special_tokens=False, principal=call.principal
        )
    except EngineError as error:
        raise to_api_error(error, {"prompt": "messages"}) from error
    await call.connection.answer_json(200, {"input_tokens": len(tokens)})


def speak_messages(connection: HttpConnection) -> None:
    """Let the answer to the present request have this protocol's header, whatever fails."""
    request_id = dict(connection.standing_headers).get("x-request-id")
    if request_id is not None:
        connection.standing_headers.append(("request-id", request_id))


async def _create(call: Call, read: Callable[..., ChatRequest]) -> None:
    application = call.application
    call.check_accepting()
    body = await call.read_order()
    model = application.generator.model_name
    request = read(body, model=model, answer_format=application.answer_format)
    await _answer(call, request, body)


async def _answer(call: Call, request: ChatRequest | CompletionsRequest, body: JsonObject) -> None:
    keyed, completions = keyed_request(call, body), call.application.completions
    asked = (request, call.principal, body, call.claim)
    order = completions.order(*asked, is_keyed=keyed is not None)
    await OrderCall(call, completions, order, _send_chunks).carry_out(keyed)


async def _send_chunks(call: Call, reader: Reader) -> None:
    """Send everything that a reader reads. A failure is an error event, which SDKs raise."""
    await send_frames(call, reader, reader.take)


async def resume_chat_completion(call: Call) -> None:
    """`GET /v1/chat/completions/{id}/stream`: the rest of a streamed chat completion.

    On whatever frontend it is. Raises `ApiError` before the answer has begun.
    """
    await _resume(call, CHAT_KIND, STREAM_QUERY.read(call.query, call.header))


async def resume_completion(call: Call) -> None:
    """`GET /v1/completions/{id}/stream`: the rest of a streamed completion.

    On whatever frontend it is. Raises `ApiError` before the answer has begun.
    """
    await _resume(call, COMPLETIONS_KIND, STREAM_QUERY.read(call.query, call.header))


async def resume_message(call: Call) -> None:
    """`GET /v1/messages/{id}/stream`: the rest of a streamed message.

    On whatever frontend it is. Raises `ApiError` before the answer has begun.
    """
    await _resume(call, MESSAGES_KIND, STREAM_QUERY.read(call.query, call.header))


async def _resume(call: Call, kind: str, query: dict[str, Any]) -> None:
    if not call.resource_id.startswith(f"{kind}_"):
        raise completion_not_found(call.resource_id)
    after = position_of(call.connection) or query["starting_after"]
    asked = (call.resource_id, call.principal, after)
    call.connection.access.note_id(call.resource_id)
    with call.connection.cancel_when_client_leaves():
        is_client = not call.connection.is_head
        async with call.application.completions.read(*asked, is_client=is_client) as reader:
            await _send_chunks(call, reader)
