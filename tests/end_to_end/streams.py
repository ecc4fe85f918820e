"""Streams of responses as clients see them, read to their end in the background of a test."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import attrs
import httpx
import trio
import trio_websocket

from .server import DEADLINE_S, Server, wait_until

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


def body(tokens: int, **fields: Any) -> dict[str, Any]:
    """A response of exactly so many tokens; `fields` are added or replaced."""
    return {
        "input": "Tell me a story about a fox.",
        "max_output_tokens": tokens,
        "temperature": 0,
        "runtime": {"seed": 1, "ignore_eos": True, "token_ids": True},
        **fields,
    }


@attrs.define(eq=False)
class SeenStream:
    """What was seen of one stream. `broken` is set if the connection ended without a last event."""

    events: list[dict[str, Any]] = attrs.field(factory=list)
    broken: Exception | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    def see(self, event: dict[str, Any]) -> None:
        """Take one event; the last one ends the stream."""
        assert not self.ended.is_set(), f"after its end came {event}"
        self.events.append(event)
        if event["type"] in TERMINAL:
            self.ended.set()

    def break_off(self, error: Exception) -> None:
        """The connection is gone."""
        if not self.ended.is_set():
            self.broken = error
            self.ended.set()

    @property
    def token_ids(self) -> list[int]:
        """All that were streamed."""
        return [token for event in self.events for token in event.get("token_ids", [])]

    @property
    def text(self) -> str:
        """All that was streamed."""
        kind = "response.output_text.delta"
        return "".join(event["delta"] for event in self.events if event["type"] == kind)

    @property
    def last(self) -> dict[str, Any]:
        """The last event so far."""
        return self.events[-1]

    @property
    def error(self) -> dict[str, Any]:
        """The error object of a stream that failed, {} otherwise."""
        if not self.events or self.last["type"] not in ("response.failed", "error"):
            return {}
        error = self.last.get("error") or self.last["response"]["error"]
        assert isinstance(error, dict)
        return error


async def read_sse(client: httpx.AsyncClient, request: dict[str, Any], seen: SeenStream) -> None:
    """POST a streamed response and read it to its end."""
    try:
        call = client.stream("POST", "/v1/responses", json={**request, "stream": True})
        async with call as response:
            if response.status_code != 200:
                seen.see({"type": "error", **json.loads(await response.aread())})
                return
            await _see_lines(cast(AsyncGenerator[str, None], response.aiter_lines()), seen)
    except httpx.TransportError as error:
        seen.break_off(error)
    else:
        seen.break_off(EOFError("it ended without a last event"))


async def check_serves(server: Server) -> None:
    """A good request, whole, as soon as the server says that it is ready."""
    await wait_until(server.is_ready, "/ready")
    seen = SeenStream()
    with trio.fail_after(DEADLINE_S):
        async with server.client() as client:
            await read_sse(client, body(5), seen)
    assert len(seen.token_ids) == 5, seen.events


async def _see_lines(reader: AsyncGenerator[str, None], seen: SeenStream) -> None:
    async with aclosing(reader) as lines:
        async for line in lines:
            if line.startswith("data: {"):
                seen.see(json.loads(line.removeprefix("data: ")))


async def read_socket(
    socket: trio_websocket.WebSocketConnection, lanes: dict[str | None, SeenStream]
) -> None:
    """Sort the events of one WebSocket into its lanes until it is closed."""
    try:
        while True:
            event = json.loads(await socket.get_message())
            lanes[event.get("stream_id")].see(event)
    except trio_websocket.ConnectionClosed as error:
        for seen in lanes.values():
            seen.break_off(error)


async def read_lane(server: Server, request: dict[str, Any], seen: SeenStream) -> None:
    """A response on a socket of its own, read to its end."""
    async with open_socket(server.url) as socket, trio.open_nursery() as nursery:
        await socket.send_message(json.dumps({"type": "response.create", **request}))
        lanes: dict[str | None, SeenStream] = {None: seen}
        nursery.start_soon(read_socket, socket, lanes)
        await seen.ended.wait()
        nursery.cancel_scope.cancel("the stream has ended")


@asynccontextmanager
async def open_socket(url: str) -> AsyncIterator[trio_websocket.WebSocketConnection]:
    """A WebSocket to the server at this URL; leaving the block drops the connection.

    The stream is ours: trio-websocket does not close one that the server has reset.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream, trio.open_nursery() as nursery:
        yield await trio_websocket.wrap_client_stream(
            nursery, stream, f"{host}:{port}", "/v1/responses"
        )
        nursery.cancel_scope.cancel("the client leaves")
