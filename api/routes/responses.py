"""HTTP routes of responses: create, get or read again, cancel, delete, list the input.

Thin shells: bodies are validated and events built by pure modules, responses run in their nursery;
here is the waiting. A client that leaves is a reader less.
"""

import trio

from ...runtime.messages import ForeignVerb
from ..application import Application, Call
from ..errors import ApiError, bad_field
from ..openai.responses_request import ResponseRequest, read_response_request
from ..openai.sse import event_frame
from ..responses.history import Conversation, input_items
from ..responses.response import ResponseReader
from ..schema.fields import FlagKind, IntegerKind, JsonObject, TextKind
from ..schema.tables import Field, Query
from .orders import (
    RESUME_HEADERS,
    OrderCall,
    Reader,
    keyed_request,
    position_of,
    send_frames,
)

# OpenAI's figures for lists of items.
ITEMS_DEFAULT = 20
ITEMS_MAX = 100
GET_QUERY = Query(
    {
        "stream": Field(FlagKind(), "Whether to send its events instead of what it is now."),
        "starting_after": Field(
            IntegerKind(minimum=0), "Only events after this sequence number; needs `stream=true`."
        ),
    },
    headers=RESUME_HEADERS,
)
ITEMS_QUERY = Query(
    {
        "limit": Field(
            IntegerKind(minimum=1, maximum=ITEMS_MAX), f"Items at most; {ITEMS_DEFAULT} if absent."
        ),
        "order": Field(TextKind(choices=("asc", "desc")), "By age; newest first if absent."),
        "after": Field(TextKind(), "Only items behind the one of this id, in this order."),
    }
)


async def create_response(call: Call) -> None:
    """`POST /v1/responses`: a response, streamed, whole, or only started (`background`).

    Raises `ApiError` before the answer has begun.
    """
    call.check_accepting()
    body = await call.read_order()
    keyed = keyed_request(call, body)
    request, responses = _read(call.application, body), call.application.responses
    # A whole answer may outlive its client, and have readers then.
    has_readers = request.stream or request.background or (keyed is None and request.keep_s > 0)
    order = responses.order(
        request, call.principal, call.claim, streaming=has_readers, is_keyed=keyed is not None
    )
    await OrderCall(call, responses, order, _send_events).carry_out(keyed)


def _read(application: Application, body: JsonObject) -> ResponseRequest:
    """A body of HTTP. Raises `ApiError`."""
    model, now = application.generator.model_name, trio.current_time()
    request = read_response_request(
        body, model=model, now=now, answer_format=application.answer_format
    )
    if request.options.credit is not None:
        raise bad_field("runtime.credit", "is served on a socket, where more can be granted")
    return request


async def count_input_tokens(call: Call) -> None:
    """`POST /v1/responses/input_tokens`: how many tokens the prompt of such a response would have.

    Raises `ApiError`.
    """
    application = call.application
    request = _read(application, await call.read_body())
    count = await application.responses.count_input_tokens(request, call.principal)
    answer = {"object": "response.input_tokens", "input_tokens": count}
    await call.connection.answer_json(200, answer)


async def _send_events(call: Call, reader: Reader) -> None:
    """Send everything that a reader reads."""
    application = call.application
    characters_max = application.settings.limits.socket.lane_buffer_bytes_max

    def take() -> bytes:
        return b"".join([event_frame(event) for event in reader.take(characters_max)])

    try:
        await send_frames(call, reader, take)
    finally:
        if isinstance(reader, ResponseReader):
            application.counters.deltas_merged += reader.cursor.merged


async def get_response(call: Call) -> None:
    """`GET /v1/responses/{id}`: a response, or (`stream=true`) its events after a number.

    On whatever frontend it is. Raises `ApiError` before the answer has begun.
    """
    connection, application, principal = call.connection, call.application, call.principal
    response_id, query = call.resource_id, GET_QUERY.read(call.query, call.header)
    starting_after = query["starting_after"]
    if query["stream"]:
        position = position_of(connection)
        after = starting_after if position is None else position
        connection.access.note_id(response_id)
        with connection.cancel_when_client_leaves():
            async with application.responses.read(response_id, principal, after) as reader:
                await _send_events(call, reader)
        return
    asked = (ForeignVerb.GET, response_id, principal)
    response = await application.responses.ask(*asked, kind=JsonObject)
    await connection.answer_json(200, response)


async def cancel_response(call: Call) -> None:
    """`POST /v1/responses/{id}/cancel`: cancel a response; idempotent, answers the final object."""
    responses = call.application.responses
    asked = (ForeignVerb.CANCEL, call.resource_id, call.principal)
    final = await responses.ask(*asked, kind=JsonObject)
    await call.connection.answer_json(200, final)


async def delete_response(call: Call) -> None:
    """`DELETE /v1/responses/{id}`: forget a response; one that runs is cancelled as well."""
    asked = (ForeignVerb.DELETE, call.resource_id, call.principal)
    await call.application.responses.ask(*asked, kind=JsonObject)
    deleted = {"id": call.resource_id, "object": "response", "deleted": True}
    await call.connection.answer_json(200, deleted)


async def list_input_items(call: Call) -> None:
    """`GET /v1/responses/{id}/input_items`: the input of a response, earlier turns included."""
    response_id, query = call.resource_id, ITEMS_QUERY.read(call.query)
    responses = call.application.responses
    asked = (ForeignVerb.INPUT, response_id, call.principal)
    conversation = await responses.ask(*asked, kind=Conversation)
    items = input_items(conversation, response_id)
    if query["order"] != "asc":
        items.reverse()
    items, has_more = _page(items, query["after"], query["limit"] or ITEMS_DEFAULT)
    page = {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
    await call.connection.answer_json(200, page)


def _page(items: list[JsonObject], after: str | None, limit: int) -> tuple[list[JsonObject], bool]:
    """The items behind `after`, and whether there are more. Raises `ApiError`."""
    if after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            message = "after: there is no item of this id in the input of this response"
            raise ApiError(404, message, "item_not_found", param="after")
        items = items[places[0] + 1 :]
    return items[:limit], len(items) > limit
