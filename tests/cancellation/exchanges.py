"""What clients do, as the exchanges under test: one connection each, every kind of request.

A client here ends by itself, whatever the server does, and says whether it got the whole answer.
"""

import contextlib
from collections.abc import Awaitable, Callable

import h11
import trio
import wsproto.utilities

from triolet.tests.api.fakes import HttpClient
from triolet.tests.api.websocket.socket_client import SocketClient

TOKENS = 4
RUNTIME = {"seed": 7, "ignore_eos": True}
PROMPT = "hello world"
# What an end of the connection looks like to a client, wherever it comes.
ENDS = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    h11.RemoteProtocolError,
    wsproto.utilities.RemoteProtocolError,
    wsproto.utilities.LocalProtocolError,
)
Exchange = Callable[[trio.abc.Stream], Awaitable[bool]]


async def _request(stream: trio.abc.Stream, path: str, body: dict[str, object]) -> bool:
    """Whether a whole answer came that is no error."""
    answer = await HttpClient(stream).request("POST", path, body)
    if body.get("stream"):
        kinds = list(answer.events())
        return "error" not in kinds[-1] and kinds[-1].get("type") != "response.failed"
    return answer.status == 200


async def responses_whole(stream: trio.abc.Stream) -> bool:
    """A response in one piece."""
    body = {"input": PROMPT, "max_output_tokens": TOKENS, "runtime": RUNTIME}
    return await _request(stream, "/v1/responses", body)


async def responses_stream(stream: trio.abc.Stream) -> bool:
    """A response as events."""
    body = {"input": PROMPT, "max_output_tokens": TOKENS, "runtime": RUNTIME, "stream": True}
    return await _request(stream, "/v1/responses", body)


async def chat_stream(stream: trio.abc.Stream) -> bool:
    """A chat completion as chunks."""
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "max_tokens": TOKENS, "stream": True, **RUNTIME}
    return await _request(stream, "/v1/chat/completions", body)


async def completions_stream(stream: trio.abc.Stream) -> bool:
    """Two prompts in one request, as chunks."""
    body = {"prompt": [PROMPT, "hi"], "max_tokens": TOKENS, "stream": True, **RUNTIME}
    return await _request(stream, "/v1/completions", body)


async def lanes(stream: trio.abc.Stream) -> bool:
    """A socket with two lanes, a response cancelled and one to its end, closed by the client."""
    socket = SocketClient(stream)
    if await socket.handshake() != 101:
        return False
    more = {"max_output_tokens": TOKENS, "runtime": RUNTIME}
    await socket.create(PROMPT, "a", **more)
    await socket.create(PROMPT, "b", max_output_tokens=100, runtime=RUNTIME)
    open_lanes = {"a", "b"}
    while open_lanes:
        event = await socket.receive()
        if event is None or event["type"] == "error":
            return False
        if event["type"] == "response.in_progress" and event["stream_id"] == "b":
            await socket.send({"type": "response.cancel", "stream_id": "b"})
        if event["type"] in ("response.incomplete", "response.completed"):
            open_lanes.remove(event["stream_id"])
    await socket.close()
    return await socket.receive() is None


EXCHANGES: dict[str, Exchange] = {
    "responses": responses_whole,
    "responses, streamed": responses_stream,
    "chat completions, streamed": chat_stream,
    "completions of two prompts, streamed": completions_stream,
    "socket with two lanes": lanes,
}


async def perform(exchange: Exchange, stream: trio.abc.Stream) -> bool:
    """Whether the exchange was whole; any end of the connection is one that was not."""
    whole = False
    with contextlib.suppress(*ENDS):
        whole = await exchange(stream)
    await trio.aclose_forcefully(stream)
    return whole
