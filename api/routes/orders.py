"""Orders of all routes that generate: executed, or answered as the request that had the same key.

The answer is a stream's events, the whole of it, or (in the background) what it is at its start. A
request with an `Idempotency-Key` goes on when its client leaves; others end with it, unless their
streams are kept.
"""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import attrs

from ...runtime.messages import ForeignVerb
from ..application import Call
from ..http.connection import HttpConnection
from ..schema.fields import JsonObject
from ..streams.claims import HEADER_NAME, KeyedRequest
from ..streams.foreign import ForeignReader
from ..streams.served_stream import Order
from ..streams.service import StreamService
from ..streams.stream_reader import StreamReader

# Stripe's mark of an answer that another request with the same key was the first to get.
REPLAYED = ("idempotent-replayed", "true")
# Browsers' way to say where a stream was cut.
RESUME_HEADERS = {"last-event-id": "starting_after"}
Reader = StreamReader[Any, Any] | ForeignReader[Any]


def keyed_request(call: Call, body: JsonObject) -> KeyedRequest | None:
    """The key of this request with its route and body; None without the header.

    Raises `ApiError` 400 for what is no key.
    """
    key = call.header(HEADER_NAME)
    if key is None:
        return None
    return KeyedRequest.read(key, call.principal, call.connection.route, body)


def position_of(connection: HttpConnection) -> Any:
    """Position behind which a stream goes on that another process has begun."""
    return connection.state.position


@attrs.frozen
class OrderCall:
    """Call with an order for a service; `send` sends what is read."""

    call: Call
    service: StreamService[Any, Any, Any]
    order: Order
    send: Callable[[Call, Reader], Awaitable[None]]

    async def carry_out(self, keyed: KeyedRequest | None) -> None:
        """Execute the order, or answer as the one did that had its key.

        Raises `ApiError` before the answer has begun.
        """
        call, order = self.call, self.order
        # A stream that is only begun is begun, though its client does not wait.
        is_left_alone = order.is_background and keyed is None
        with nullcontext() if is_left_alone else call.connection.cancel_when_client_leaves():
            if keyed is None:
                await self._execute()
                return
            with call.application.books.executions.pending(order.stream_id):
                # A claim of a request that was admitted here is enough: its home need not be up.
                is_own = self.service.store.begun(order.stream_id) is not None
                if is_own or not await self._answer_again(keyed):
                    await self._execute()

    async def _execute(self) -> None:
        connection, order, service = self.call.connection, self.order, self.service
        access, is_begun = connection.access, connection.state.is_begun
        if order.is_streamed:
            async with service.open(order, must_be_begun=is_begun) as stream:
                access.generation = stream.generated
                with stream.reading_first(position_of(connection)) as reader:
                    await self.send(self.call, reader)
        elif order.is_background:
            async with service.open(order, must_be_begun=is_begun) as stream:
                begun = stream.record.snapshot()
            await connection.answer_json(200, begun)
        else:
            async with service.answer(order, access, must_be_begun=is_begun) as stream:
                await connection.answer_json(200, stream.whole())

    async def _answer_again(self, keyed: KeyedRequest) -> bool:
        """Answer as another request with this key is, or was, answered. False if this one, whose id
        is pending, is to be executed.

        Raises `ApiError` as `KeyedRequests.choose` does, and the failure that the other one ended
        with.
        """
        call, order = self.call, self.order
        connection, requests, principal = call.connection, call.application.keyed, call.principal
        if not (order.is_streamed or order.is_background):
            found = await requests.find_answer(keyed, principal, order.stream_id)
            if found is None:
                return False
            connection.standing_headers.append(REPLAYED)
            await connection.answer_json(200, found)
            return True
        claim = await requests.choose(keyed, principal, order.stream_id)
        if claim.response_id == order.stream_id:
            return False
        connection.standing_headers.append(REPLAYED)
        connection.access.note_id(claim.response_id)
        asked = (claim.response_id, principal)
        if order.is_streamed:
            async with self.service.read(*asked, position_of(connection)) as reader:
                await self.send(call, reader)
        else:
            foreign = call.application.foreign
            begun = await foreign.call(ForeignVerb.GET, *asked, kind=JsonObject)
            await connection.answer_json(200, begun)
        return True


async def send_frames(call: Call, reader: Reader, take: Callable[[], bytes]) -> None:
    """Send everything that a reader reads, as `take` makes frames of it."""
    connection, keep_alive = call.connection, call.application.keep_alive
    await connection.start_events()
    if connection.is_head:  # and nothing is to be read
        await connection.end_events()
        return
    frames = b""
    with keep_alive.watching(connection, reader.wake_up):
        while not reader.done.is_set():
            if frames:
                await connection.send_events(frames, reader.position)
            else:
                await keep_alive.send_due(connection)
            await reader.wait_ready()
            frames = take()
    await connection.end_events(frames)
