"""HTTP routes of responses: create, get or read again, cancel, delete, list the input.

Thin shells: bodies are validated and events built by pure modules, responses run in their nursery;
here is the waiting. A client that leaves is a reader less.
"""

from contextlib import AsyncExitStack
from functools import partial

import trio

from ...runtime.messages import ForeignVerb
from ..application import Application, Call
from ..errors import ApiError, bad_field
from ..http.connection import HttpConnection
from ..openai.responses_request import ResponseRequest, ResumeRequest, read_response_request
from ..openai.sse import event_frame
from ..responses.history import Conversation, input_items
from ..responses.response import Response, ResponseReader
from ..responses.service import Reader
from ..schema.fields import FlagKind, IntegerKind, JsonObject, TextKind
from ..schema.tables import Field, Query
from ..streams.claims import KeyedRequest
from .idempotency import answer_again, keyed_request

# OpenAI's figures for lists of items.
ITEMS_DEFAULT = 20
ITEMS_MAX = 100
# Browsers' way to say where a stream was cut.
RESUME_HEADERS = {"last-event-id": "starting_after"}
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
    connection, application, principal = call.connection, call.application, call.principal
    call.check_accepting()
    body = await call.read_order()
    keyed = keyed_request(call, body)
    request = _read(application, body)
    if keyed is not None:
        await _create_keyed(call, request, keyed)
        return
    response_id = call.claim(application.ids.draw_response_id)
    opening = partial(
        application.responses.open,
        request,
        principal,
        response_id=response_id,
        must_be_begun=connection.state.is_begun,
    )
    if request.stream:
        with connection.cancel_when_client_leaves():
            async with opening() as response:
                await _stream(connection, application, response)
    elif request.background:
        async with opening() as response:
            connection.access.note_id(response.response_id)
            snapshot = response.record.snapshot()
        await connection.answer_json(200, snapshot)
    else:
        await _answer_whole(connection, application, principal, request)


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


async def _create_keyed(call: Call, request: ResponseRequest, keyed: KeyedRequest) -> None:
    """Execute it, or answer as the one that did; it goes on when the client leaves."""
    application, principal, connection = call.application, call.principal, call.connection
    responses, response_id = application.responses, call.claim(application.ids.draw_response_id)
    is_whole = not (request.stream or request.background)

    async def answer(found_id: str) -> None:
        connection.access.note_id(found_id)
        if request.stream:
            resume = ResumeRequest(response_id=found_id, starting_after=_position(connection))
            async with responses.read(resume, principal) as reader:
                await _send_events(connection, application, reader)
        else:
            found = await responses.ask(ForeignVerb.GET, found_id, principal, kind=JsonObject)
            await connection.answer_json(200, found)

    pending = application.store.executions.pending(response_id)
    with connection.cancel_when_client_leaves(), pending:
        # A claim of a request that was admitted here is enough: its home need not be up.
        if application.store.begun(response_id) is None and await answer_again(
            call, keyed, response_id, None if is_whole else answer
        ):
            return
        async with responses.open(
            request,
            principal,
            response_id=response_id,
            streaming=not is_whole,
            is_keyed=True,
            must_be_begun=connection.state.is_begun,
        ) as response:
            if request.stream:
                await _stream(connection, application, response)
                return
            connection.access.generation = response.generated
            if is_whole:
                await response.wait_ended()
        await connection.answer_json(200, response.whole())


async def _answer_whole(
    connection: HttpConnection, application: Application, principal: str, request: ResponseRequest
) -> None:
    responses, response_id = application.responses, connection.state.claimed
    async with AsyncExitStack() as sent:
        with connection.cancel_when_client_leaves():
            # The response may outlive this client, and have readers then, or its frontend has died.
            if request.keep_s > 0 or application.store.begun(response_id) is not None:
                opening = responses.open(request, principal, response_id=response_id)
                response = await sent.enter_async_context(opening)
                connection.access.generation = response.generated
                await response.wait_ended()
            else:
                running = responses.run_whole(request, principal, response_id)
                response = await sent.enter_async_context(running)
                connection.access.generation = response.generated
        await connection.answer_json(200, response.whole())


def _position(connection: HttpConnection) -> int | None:
    """Position behind which a stream goes on that another process has begun."""
    position = connection.state.position
    assert position is None or isinstance(position, int)
    return position


async def _stream(connection: HttpConnection, application: Application, response: Response) -> None:
    connection.access.generation = response.generated
    with response.reading(_position(connection)) as reader:
        await _send_events(connection, application, reader)


async def _send_events(
    connection: HttpConnection, application: Application, reader: Reader
) -> None:
    """Send everything that a reader reads."""
    characters_max = application.settings.limits.socket.lane_buffer_bytes_max
    try:
        await connection.start_events()
        if connection.is_head:  # and nothing is to be read
            await connection.end_events()
            return
        with application.keep_alive.watching(connection, reader.wake_up):
            while not reader.done.is_set():
                await reader.wait_ready()
                events = reader.take(characters_max)
                if events:
                    frames = [event_frame(event) for event in events]
                    await connection.send_events(b"".join(frames), reader.position)
                else:
                    await application.keep_alive.send_due(connection)
        await connection.end_events()
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
        position = _position(connection)
        after = starting_after if position is None else position
        resume = ResumeRequest(response_id=response_id, starting_after=after)
        connection.access.note_id(response_id)
        with connection.cancel_when_client_leaves():
            async with application.responses.read(resume, principal) as reader:
                await _send_events(connection, application, reader)
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
