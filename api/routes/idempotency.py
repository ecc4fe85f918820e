"""The `Idempotency-Key` header of requests that generate."""

import contextlib
import functools
from collections.abc import Iterator

import attrs
import msgspec

from ..application import Call
from ..errors import ApiError
from ..http.connection import Headers, HttpConnection
from ..http.request import JSON_TYPE
from ..responses.answers import Computation
from ..responses.claims import HEADER, HEADER_NAME, KeyedRequest
from ..schema.fields import JsonObject
from .openapi import Handler

# As Stripe marks an answer that another request with the same key was the first to get.
REPLAYED = ("idempotent-replayed", "true")


def keyed_request(call: Call, body: JsonObject) -> KeyedRequest | None:
    """The key of this request with its route and body; None without the header.

    Raises `ApiError` 400 for what is no key.
    """
    request = call.connection.request
    assert request is not None
    key = request.header(HEADER_NAME)
    if key is None:
        return None
    return KeyedRequest.read(key, call.principal, call.connection.route, body)


@attrs.define(eq=False)
class AnswerRecorder(HttpConnection):
    """In a handler's hands instead of `connection`, whose body was read; it writes nothing."""

    body: JsonObject = attrs.field(kw_only=True)
    answered: JsonObject = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, connection: HttpConnection, body: JsonObject) -> "AnswerRecorder":
        """For the present request of this connection."""
        recorder = cls(connection.stream, connection.limits, body=body)
        recorder.request, recorder.route = connection.request, connection.route
        return recorder

    async def read_json(self) -> JsonObject:
        """The body that was read."""
        return self.body

    async def answer(
        self, status: int, body: bytes, *, content_type: str = JSON_TYPE, headers: Headers = ()
    ) -> None:
        """Record a whole answer: a JSON object with status 200."""
        assert status == 200
        self.answered = msgspec.json.decode(body, type=JsonObject)

    @contextlib.contextmanager
    def cancel_when_client_leaves(self) -> Iterator[None]:
        """It goes on."""
        yield


def computed_once(handler: Handler) -> Handler:
    """Its whole answers are computed once for their key, above their connection.

    Streams with a key are refused: their chunks are not kept.
    """

    @functools.wraps(handler)
    async def handle(call: Call) -> None:
        request = call.connection.request
        assert request is not None
        if request.header(HEADER_NAME) is None:
            await handler(call)
        else:
            await _answer_once(call, handler)

    return handle


async def _answer_once(call: Call, handler: Handler) -> None:
    application, principal, connection = call.application, call.principal, call.connection
    application.check_accepting()
    body = await connection.read_json()
    keyed = keyed_request(call, body)
    assert keyed is not None
    if body.get("stream"):
        reason = f"{HEADER}: is served with `stream` by /v1/responses alone"
        raise ApiError(400, reason, "unsupported_parameter", param=HEADER)
    answer_id, answers = application.ids.draw_response_id(), application.store.answers
    pending = application.store.executions.pending(answer_id)
    with connection.cancel_when_client_leaves(), pending:
        found = await application.keyed.find_answer(keyed, principal, answer_id)
        if found is None:
            recorder = AnswerRecorder.of(connection, body)

            async def compute() -> JsonObject:
                await handler(attrs.evolve(call, connection=recorder))
                return recorder.answered

            computation = Computation(answer_id, principal, compute)
            run = functools.partial(answers.run, computation)
            await application.responses.start(run, f"answer {answer_id}")
            await computation.ended.wait()
            if computation.error is not None:
                raise computation.error
            found = recorder.answered
        else:
            connection.standing_headers.append(REPLAYED)
    await connection.answer_json(200, found)
