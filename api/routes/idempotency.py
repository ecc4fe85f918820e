"""The `Idempotency-Key` header of requests that generate."""

from collections.abc import Awaitable, Callable

from ..application import Call
from ..schema.fields import JsonObject
from ..streams.claims import HEADER_NAME, KeyedRequest

# Stripe's mark of an answer that another request with the same key was the first to get.
REPLAYED = ("idempotent-replayed", "true")


def keyed_request(call: Call, body: JsonObject) -> KeyedRequest | None:
    """The key of this request with its route and body; None without the header.

    Raises `ApiError` 400 for what is no key.
    """
    key = call.header(HEADER_NAME)
    if key is None:
        return None
    return KeyedRequest.read(key, call.principal, call.connection.route, body)


async def answer_again(
    call: Call,
    keyed: KeyedRequest,
    own_id: str,
    answer: Callable[[str], Awaitable[None]] | None = None,
) -> bool:
    """Answer as another request with this key is, or was, answered: with what it ends with, or what
    `answer` makes of its id. False if this one, whose id is pending, is to be executed.

    Raises `ApiError` as `KeyedRequests.choose` does, and the failure that the other one ended with.
    """
    requests, connection = call.application.keyed, call.connection
    if answer is None:
        found = await requests.find_answer(keyed, call.principal, own_id)
        if found is None:
            return False
        connection.standing_headers.append(REPLAYED)
        await connection.answer_json(200, found)
        return True
    claim = await requests.choose(keyed, call.principal, own_id)
    if claim.response_id == own_id:
        return False
    connection.standing_headers.append(REPLAYED)
    await answer(claim.response_id)
    return True
