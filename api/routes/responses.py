"""HTTP routes of responses: create, get or read again, cancel, delete, list the input.

Thin shells: bodies are validated and events built by pure modules, responses run in their nursery;
here is the waiting. A client that leaves is a reader less.
"""

import trio

from ...runtime.messages import ForeignVerb
from ..application import Application, Call
from ..errors import bad_field
from ..http.connection import HttpConnection
from ..openai.responses_request import ResponseRequest, ResumeRequest, read_response_request
from ..openai.sse import event_frame
from ..responses.claims import KeyedRequest
from ..responses.history import input_items
from ..responses.response import Response, ResponseReader
from ..responses.service import Reader
from ..schema.fields import FlagKind, IntegerKind, JsonObject, TextKind
from ..schema.tables import Field, Query
from .idempotency import REPLAYED, keyed_request

# OpenAI's figures for lists of items.
ITEMS_DEFAULT = 20
ITEMS_MAX = 100
# As browsers say where a stream was cut.
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
    """`POST /v1/responses`: streamed, whole, or only started (`background`).

    Raises `ApiError` before the answer has begun.
    """
    connection, application, principal = call.connection, call.application, call.principal
    application.check_accepting()
    body = await connection.read_json()
    keyed = keyed_request(call, body)
    model = application.generator.model_name
    request = read_response_request(
        body, model=model, now=trio.current_time(), has_tools=application.has_tools
    )
    if request.keeping.credit is not None:
        raise bad_field("runtime.credit", "is served on a socket, where more can be granted")
    if keyed is not None:
        await _create_keyed(call, request, keyed)
    elif request.stream:
        with connection.cancel_when_client_leaves():
            async with application.responses.open(request, principal) as response:
                with response.reading() as reader:
                    await _send_events(connection, application, reader)
    elif request.background:
        async with application.responses.open(request, principal) as response:
            snapshot = response.record.snapshot()
        await connection.answer_json(200, snapshot)
    else:
        await _answer_whole(connection, application, principal, request)


async def _create_keyed(call: Call, request: ResponseRequest, keyed: KeyedRequest) -> None:
    """Execute it, or answer as the one that did; it goes on when the client leaves."""
    application, principal = call.application, call.principal
    responses, response_id = application.responses, application.ids.draw_response_id()
    executions, streaming = application.store.executions, request.stream or request.background
    with call.connection.cancel_when_client_leaves(), executions.pending(response_id):
        if await _answer_again(call, request, keyed, response_id):
            return
        async with responses.open(
            request, principal, streaming=streaming, keyed_id=response_id
        ) as response:
            if request.stream:
                with response.reading() as reader:
                    await _send_events(call.connection, application, reader)
                return
            if not request.background:
                await response.wait_ended()
        await _answer_with(call.connection, response)


async def _answer_again(
    call: Call, request: ResponseRequest, keyed: KeyedRequest, response_id: str
) -> bool:
    """Answer as another request with this key is, or was, answered; False if this is the first."""
    application, principal, connection = call.application, call.principal, call.connection
    asked = (keyed, principal, response_id)
    if not (request.stream or request.background):
        answer = await application.keyed.find_answer(*asked)
        if answer is not None:
            connection.standing_headers.append(REPLAYED)
            await connection.answer_json(200, answer)
        return answer is not None
    claim = await application.keyed.choose(*asked)
    if claim.response_id == response_id:
        return False
    connection.standing_headers.append(REPLAYED)
    if request.stream:
        resume = ResumeRequest(response_id=claim.response_id, starting_after=None)
        async with application.responses.read(resume, principal) as reader:
            await _send_events(connection, application, reader)
    else:
        found = (ForeignVerb.GET, claim.response_id, principal)
        await connection.answer_json(200, await application.responses.ask(*found))
    return True


async def _answer_whole(
    connection: HttpConnection, application: Application, principal: str, request: ResponseRequest
) -> None:
    responses = application.responses
    with connection.cancel_when_client_leaves():
        if request.keeping.keep_s > 0:  # it may outlive this client, and have readers then
            async with responses.open(request, principal) as response:
                await response.wait_ended()
        else:
            response = await responses.run_whole(request, principal)
    await _answer_with(connection, response)


async def _answer_with(connection: HttpConnection, response: Response) -> None:
    """Its object as it is now. Raises the failure that it ended with."""
    ending = response.record.ending
    if ending is not None and ending.error is not None:
        raise ending.error
    await connection.answer_json(200, response.record.snapshot())


async def _send_events(
    connection: HttpConnection, application: Application, reader: Reader
) -> None:
    """Send everything that a reader reads."""
    characters_max = application.settings.limits.socket.lane_buffer_bytes_max
    try:
        await connection.start_events()
        while not reader.done.is_set():
            await reader.wait_ready()
            events = reader.take(characters_max)
            if events:
                frames = [event_frame(event) for event in events]
                await connection.send_events(b"".join(frames))
        await connection.end_events()
    finally:
        if isinstance(reader, ResponseReader):
            application.counters.deltas_merged += reader.cursor.merged


async def get_response(call: Call) -> None:
    """`GET /v1/responses/{id}`: as it is now, or (`stream=true`) its events after a number.

    On whatever frontend it is. Raises `ApiError` before the answer has begun.
    """
    connection, application, principal = call.connection, call.application, call.principal
    response_id, query = call.resource_id, GET_QUERY.read(call.query, call.header)
    starting_after = query["starting_after"]
    if query["stream"]:
        resume = ResumeRequest(response_id=response_id, starting_after=starting_after)
        with connection.cancel_when_client_leaves():
            async with application.responses.read(resume, principal) as reader:
                await _send_events(connection, application, reader)
        return
    if starting_after is not None:
        raise bad_field("starting_after", "needs `stream=true`")
    response = await application.responses.ask(ForeignVerb.GET, response_id, principal)
    await connection.answer_json(200, response)


async def cancel_response(call: Call) -> None:
    """`POST /v1/responses/{id}/cancel`: idempotent; answers the final object with its output."""
    responses = call.application.responses
    final = await responses.ask(ForeignVerb.CANCEL, call.resource_id, call.principal)
    await call.connection.answer_json(200, final)


async def delete_response(call: Call) -> None:
    """`DELETE /v1/responses/{id}`: forgotten at once; one that runs is cancelled as well."""
    await call.application.responses.ask(ForeignVerb.DELETE, call.resource_id, call.principal)
    deleted = {"id": call.resource_id, "object": "response", "deleted": True}
    await call.connection.answer_json(200, deleted)


async def list_input_items(call: Call) -> None:
    """`GET /v1/responses/{id}/input_items`: what it was given, earlier turns included."""
    response_id, query = call.resource_id, ITEMS_QUERY.read(call.query)
    responses = call.application.responses
    conversation = await responses.ask(ForeignVerb.INPUT, response_id, call.principal)
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
            raise bad_field("after", "is not the id of an item of this response")
        items = items[places[0] + 1 :]
    return items[:limit], len(items) > limit
