"""Clients of simulated connections: they know nothing of lives, and read every byte.

Each talks on one connection, waits for what it expects, and then for the server's end of it.
"""

import json
import socket
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import attrs
import trio

from ...doubles.websocket_frames import CLOSE, HANDSHAKE, PONG, TEXT, frame
from ..scene import Scene
from ..streams import Violation
from .answers import ByteReader, EventLog
from .plan import Kind, Talk
from .tcp import SimTcp

# A request's seeds are those of its client and its own number.
SEEDS_EACH = 100
# After the tokens that were allowed, others would have come.
SETTLED_S = 0.05
LANES: tuple[str | None, ...] = (None, "a", "b")
CREDIT_FIRST, CREDIT_MORE = 3, 4
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
# Clients that read no answer.
UNANSWERED = frozenset({Kind.STUCK, Kind.FATAL})


# A client that reads nothing: its stream is larger.
STUCK_BYTES = 1000


async def run_talk(scene: Scene, talk: Talk) -> None:
    """One client, on a connection that the root passes to a frontend."""
    assert scene.connections is not None
    size = STUCK_BYTES if talk.kind is Kind.STUCK else talk.buffer_bytes
    chance, is_fatal = Random(f"{talk.name} {talk.seed}"), talk.kind is Kind.FATAL
    tcp = SimTcp(talk.name, chance, size, is_fatal)
    client = SimClient(talk, tcp)
    await trio.sleep(talk.at_s)
    near, far = scene.connections.sockets.connect(tcp)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_wait_closed, tcp, far)
        with near:
            await scene.root.frontends.connections.pass_connection(near)
        process = scene.frontends[0]
        try:
            await client.run()
        except Violation:
            if tcp.is_held or process.is_alive:
                raise
            scene.reached["lost without a slot"] += 1
        else:
            scene.said[talk.name] = [] if talk.kind in UNANSWERED else client.reader.said()
            scene.reached[str(talk.kind)] += 1
        nursery.cancel_scope.cancel("the client has gone")


async def _wait_closed(tcp: SimTcp, far: socket.socket) -> None:
    """Task of a connection's other end: until its last descriptor is closed."""
    with far:
        await trio.lowlevel.wait_readable(far)
    tcp.handle_closed()


def post(path: str, body: dict[str, Any], more: str = "") -> bytes:
    """A request whole."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{more}\r\n"
    return head.encode() + data


@attrs.define(eq=False)
class SimClient:
    """One client on its connection."""

    talk: Talk
    tcp: SimTcp
    reader: ByteReader = attrs.field(factory=ByteReader)
    _asked: int = 0

    async def run(self) -> None:
        """All that it has to say. Raises `Violation` if the server ends it, or says too much."""
        await _TALKS[self.talk.kind](self)
        if self.talk.kind in UNANSWERED:
            return
        self.tcp.shut()
        while await self._hear():
            pass
        if not self.reader.is_socket and not self.reader.is_between:
            self.fail("more came than was asked for")

    def fail(self, what: str) -> None:
        """Raises `Violation`."""
        raise Violation(f"{self.talk.name}: {what}")

    # ---- bytes

    async def say(self, data: bytes) -> None:
        """In pieces, if it does so."""
        size = self.talk.piece_bytes
        for begin in range(0, len(data), max(size, len(data) // 40)):
            self.tcp.send(data[begin : begin + max(size, len(data) // 40)])
            await trio.sleep(self.talk.pause_s)

    async def hear_until(self, is_enough: Callable[[], bool]) -> None:
        """Read on until this holds."""
        while not is_enough():
            if not await self._hear():
                self.fail("its connection was ended before its answer was")

    async def _hear(self) -> bool:
        try:
            data = await self.tcp.receive(self.talk.read_bytes)
            self.reader.feed(data)
        except ConnectionResetError:
            self.fail("its connection was reset")
        except Violation as error:
            self.fail(str(error))
        while self.reader.pings:
            self.tcp.send(frame(PONG, self.reader.pings.pop(0)))
        if self.talk.pause_s:
            await trio.sleep(self.talk.pause_s)
        return bool(data)

    async def ask(self, *requests: bytes) -> None:
        """Send requests, and wait for their answers."""
        whole = self.reader.whole + len(requests)
        await self.say(b"".join(requests))
        await self.hear_until(lambda: self.reader.whole == whole)

    # ---- requests

    def _seed(self) -> int:
        self._asked += 1
        return self.talk.seed * SEEDS_EACH + self._asked

    def response(self, **more: Any) -> dict[str, Any]:
        """The body of one."""
        runtime = {"seed": self._seed(), "ignore_eos": True, "token_ids": True}
        runtime |= more.pop("runtime", {})
        body = {"input": f"hello {self._asked}", "max_output_tokens": self.talk.tokens}
        return {**body, "temperature": 0.8, "runtime": runtime, **more}

    def chat(self, **more: Any) -> dict[str, Any]:
        """The body of one."""
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
        body |= {"max_tokens": self.talk.tokens, "ignore_eos": True, "seed": self._seed()}
        return {**body, "temperature": 0.8, **more}

    async def send_event(self, event: dict[str, Any]) -> None:
        """One message on a socket."""
        await self.say(frame(TEXT, json.dumps(event).encode()))

    async def create(self, lane: str | None, **more: Any) -> None:
        """Ask for a response in this lane."""
        stream = {} if lane is None else {"stream_id": lane}
        await self.send_event({"type": "response.create", **stream, **self.response(**more)})

    def log(self, lane: str | None) -> EventLog:
        """What came in this lane."""
        return self.reader.lanes.setdefault(lane, EventLog())

    async def hear_tokens(self, log: EventLog, count: int) -> None:
        """Until so many have come in a lane."""
        await self.hear_until(lambda: log.tokens >= count)

    async def close_socket(self) -> None:
        """By a close frame, which is answered."""
        await self.say(frame(CLOSE, (1000).to_bytes(2, "big")))
        await self.hear_until(lambda: self.reader.close_code == 1000)


async def _responses(client: SimClient) -> None:
    await client.ask(post("/v1/responses", client.response(stream=True)))
    await client.ask(GET)


async def _chat(client: SimClient) -> None:
    options = {"include_usage": True}
    body = client.chat(stream=True, stream_options=options)
    await client.ask(post("/v1/chat/completions", body))
    await client.ask(GET)


async def _whole(client: SimClient) -> None:
    await client.ask(post("/v1/responses", client.response()))
    await client.ask(post("/v1/chat/completions", client.chat()))


async def _pieces(client: SimClient) -> None:
    body = {"prompt": "a fox " * 40}
    await client.ask(post("/tokenize", body))
    wanted = post("/tokenize", body, "Expect: 100-continue\r\n")
    head, _, rest = wanted.partition(b"\r\n\r\n")
    whole = client.reader.whole
    await client.say(head + b"\r\n\r\n")
    await client.hear_until(lambda: client.reader.whole == whole + 1)
    await client.say(rest)
    await client.hear_until(lambda: client.reader.whole == whole + 2)


async def _pipeline(client: SimClient) -> None:
    await client.ask(
        GET,
        post("/tokenize", {"prompt": "a fox"}),
        post("/v1/responses", client.response()),
        post("/v1/chat/completions", client.chat(stream=True)),
        post("/v1/responses", client.response(stream=True)),
        GET,
    )


async def _large(client: SimClient) -> None:
    for words in (2000, 4000, 3000):
        await client.ask(post("/tokenize", {"prompt": "a fox " * words}))


async def _lanes(client: SimClient) -> None:
    await client.say(HANDSHAKE)
    for lane in LANES * 2:
        await client.create(lane)
    await client.hear_until(lambda: all(client.log(lane).ends == 2 for lane in LANES))
    await client.close_socket()


async def _credit(client: SimClient) -> None:
    await client.say(HANDSHAKE)
    await client.create("a", runtime={"credit": CREDIT_FIRST})
    log, granted, is_by_id = client.log("a"), CREDIT_FIRST, bool(client.talk.seed % 2)
    while granted < client.talk.tokens:
        await client.hear_tokens(log, granted)
        with trio.move_on_after(SETTLED_S):
            await client.hear_until(lambda: False)
        if log.tokens > granted:
            client.fail(f"got {log.tokens} tokens, and credit for {granted}")
        named = {"response_id": log.events[0]["response"]["id"]} if is_by_id else {"stream_id": "a"}
        await client.send_event({"type": "runtime.credit", "add": CREDIT_MORE, **named})
        granted += CREDIT_MORE
    await client.hear_until(lambda: log.ends == 1)
    await client.close_socket()


async def _stuck(client: SimClient) -> None:
    client.tcp.send(post("/v1/responses", client.response(stream=True, max_output_tokens=70)))
    while not client.tcp.is_reset:
        if client.tcp.is_server_done:
            client.fail("a stream that was not read ended as if it were whole")
        await client.tcp.wait_changed()


async def _fatal(client: SimClient) -> None:
    client.tcp.send(GET[:-1])  # of a whole one, what was done is the journal's affair
    while not client.tcp.is_reset:
        await client.tcp.wait_changed()


_TALKS: dict[Kind, Callable[[SimClient], Awaitable[None]]] = {
    Kind.RESPONSES: _responses,
    Kind.CHAT: _chat,
    Kind.WHOLE: _whole,
    Kind.PIECES: _pieces,
    Kind.PIPELINE: _pipeline,
    Kind.LARGE: _large,
    Kind.LANES: _lanes,
    Kind.CREDIT: _credit,
    Kind.STUCK: _stuck,
    Kind.FATAL: _fatal,
}
