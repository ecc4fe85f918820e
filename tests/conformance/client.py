"""Runs one case against an echo server and judges what came back.

The handshake and all reading are wsproto's; what is sent is the case's own bytes. Time is virtual:
"the server says nothing more" means that every task of it waits. The echo server is the server's
own connection code, from the HTTP parser to trio-websocket.
"""

import enum
from collections.abc import Awaitable, Callable

import attrs
import trio
import trio.testing
import wsproto
from trio_websocket import ConnectionClosed
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Request,
    TextMessage,
)
from wsproto.events import Pong as PongEvent

from triolet.api.http.connection import HttpConnection
from triolet.api.http.stream import BoundedStream
from triolet.api.settings import HttpLimits, SocketLimits
from triolet.api.websocket.frames import Opening, open_socket
from triolet.fuzz.doubles.websocket_frames import BINARY, TEXT, frame

from .cases import Case, Ending, Message, Pong, Quiet, Received, RoundTrips, Step, Write, close

RECEIVE_BYTES = 2**18
# Seconds of virtual time after which nothing more will come.
PATIENCE_S = 1.0
ServerEnd = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]
_NO_CODE = 1005  # RFC 6455, 7.1.5: what a close frame without a code is read as


class Verdict(enum.Enum):
    """How a case ended; the suite's words."""

    OK = "ok"
    NON_STRICT = "non-strict"
    INFORMATIONAL = "informational"
    FAILED = "failed"


@attrs.frozen
class Result:
    """A verdict and, unless it is OK, why."""

    name: str
    verdict: Verdict
    reason: str = ""


@attrs.define(eq=False)
class CaseClient:
    """One connection of one case."""

    stream: trio.abc.Stream
    received: list[Received] = attrs.field(factory=list, init=False)
    # The server's close frame came: its code, None without one.
    close_code: int | None = attrs.field(default=None, init=False)
    has_close_frame: bool = attrs.field(default=False, init=False)
    # We closed before anything of the server's closing was seen.
    closed_by_us: bool = attrs.field(default=False, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    _protocol: wsproto.WSConnection = attrs.field(
        factory=lambda: wsproto.WSConnection(wsproto.ConnectionType.CLIENT), init=False
    )
    _text: list[str] = attrs.field(factory=list, init=False)
    _bytes: list[bytes] = attrs.field(factory=list, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def handshake(self) -> None:
        """Open the socket; nothing else may come."""
        request = Request(host="localhost", target="/v1/responses")
        await self.stream.send_all(self._protocol.send(request))
        while True:
            self._protocol.receive_data(bytes(await self.stream.receive_some(RECEIVE_BYTES)))
            for event in self._protocol.events():
                assert isinstance(event, AcceptConnection), event
                assert event.subprotocol is None
                assert not event.extensions
                return

    async def read(self) -> None:
        """Take in everything until the connection ends."""
        try:
            while data := await self.stream.receive_some(RECEIVE_BYTES):
                self._protocol.receive_data(bytes(data))
                for event in self._protocol.events():
                    self._handle(event)
                self._note()
        except trio.BrokenResourceError:
            pass
        self.is_over = True
        self._note()

    def _note(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _handle(self, event: wsproto.events.Event) -> None:
        match event:
            case TextMessage(data=data, message_finished=is_whole):
                self._text.append(data)
                if is_whole:
                    self.received.append(Message(TEXT, "".join(self._text).encode()))
                    self._text.clear()
            case BytesMessage(data=data, message_finished=is_whole):
                self._bytes.append(bytes(data))
                if is_whole:
                    self.received.append(Message(BINARY, b"".join(self._bytes)))
                    self._bytes.clear()
            case PongEvent(payload=payload):
                self.received.append(Pong(bytes(payload)))
            case CloseConnection(code=code):
                self.has_close_frame = True
                self.close_code = None if code == _NO_CODE else int(code)
            case _:
                raise AssertionError(f"an echo server does not send {event!r}")

    # ---- sending

    async def perform(self, step: Step) -> None:
        """Send one step; what cannot be sent any more is let go."""
        match step:
            case Write(pieces=pieces, settle=settle):
                for piece in pieces:
                    if not await self._send(piece):
                        return
                    if settle:
                        await trio.testing.wait_all_tasks_blocked()
            case Quiet():
                await trio.testing.wait_all_tasks_blocked()
                if not self.is_over and not self.has_close_frame:
                    self.received.append(step)
            case RoundTrips(opcode=opcode, payload=payload, count=count):
                for _ in range(count):
                    await self._send(frame(opcode, payload))
                    await self.wait_until(lambda: bool(self.received))
                    if self.received != [Message(opcode, payload)]:
                        return
                    self.received.clear()

    async def _send(self, data: bytes) -> bool:
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    async def send_close(self) -> None:
        """Begin the closing handshake, or answer the server's."""
        if not self.is_over:
            self.closed_by_us |= not self.has_close_frame
            await self._send(close(self.close_code or 1000))

    async def wait_until(self, is_true: Callable[[], bool]) -> bool:
        """Wait for more to come until it is so; False when nothing more comes."""
        with trio.move_on_after(PATIENCE_S):
            while not is_true():
                await self._changed.wait()
        return is_true()


async def run_case(case: Case, serve: Callable[[ServerEnd], Awaitable[None]]) -> Result:
    """Run `case` against `serve`, which is given the server's end of a memory connection."""
    ours, theirs = trio.testing.memory_stream_pair()
    client = CaseClient(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, theirs)
        await client.handshake()
        nursery.start_soon(client.read)
        for step in case.steps:
            await client.perform(step)
        is_sent_close = case.ending.by_client and not case.closes
        if case.ending.by_client and case.closes:
            await client.wait_until(lambda: tuple(client.received) == case.expected)
            if not client.has_close_frame and not client.is_over:
                await client.send_close()
        client.closed_by_us |= is_sent_close
        is_ended = await client.wait_until(lambda: client.is_over or client.has_close_frame)
        if client.has_close_frame and not client.closed_by_us:
            await client.send_close()
        # It is the server that ends the TCP connection (RFC 6455, 7.1.1).
        is_ended &= await client.wait_until(lambda: client.is_over)
        result = _judge(case, client, is_ended=is_ended)
        nursery.cancel_scope.cancel("the case is over")
    await ours.aclose()
    return result


def _judge(case: Case, client: CaseClient, *, is_ended: bool) -> Result:
    received = tuple(client.received)
    reason = _ending_fault(case.ending, client, is_ended=is_ended)
    if case.is_informational:
        seen = f"got {received}, close code {client.close_code}"
        verdict = Verdict.INFORMATIONAL if is_ended else Verdict.FAILED
        return Result(case.name, verdict, reason if not is_ended else seen)
    if reason:
        return Result(case.name, Verdict.FAILED, reason)
    if received == case.expected:
        return Result(case.name, Verdict.OK)
    reason = f"got {received}, not {case.expected}"
    if received == case.non_strict:
        return Result(case.name, Verdict.NON_STRICT, reason)
    return Result(case.name, Verdict.FAILED, reason)


def _ending_fault(ending: Ending, client: CaseClient, *, is_ended: bool) -> str:
    """What is wrong with how the connection ended; empty when nothing is."""
    if not is_ended:
        return "the server did not end the connection"
    if client.closed_by_us != ending.by_client:
        return "the wrong side closed"
    if ending.is_clean and not client.has_close_frame:
        return "the server sent no close frame"
    if client.close_code is not None and client.close_code not in ending.codes:
        return f"close code {client.close_code}, not one of {ending.codes}"
    return ""


# Wide, since section 9 sends messages in 65 536 frames, and 1 000 messages without a byte in no
# time; everything else is as served.
LIMITS = SocketLimits(fragments_per_message_max=2**16, idle_frames_burst=4096)


async def serve_echo(stream: trio.abc.Stream) -> None:
    """Serve one connection: every message back as it came, until the client closes."""
    limits = HttpLimits()
    connection = HttpConnection(BoundedStream(stream, limits.write_s), limits)
    try:
        request = await connection.next_request()
        assert request is not None
        early = await connection.begin_upgrade()
        opening = Opening(request.websocket_key(), early=early)
        async with open_socket(connection, LIMITS, opening) as (socket, _):
            try:
                while True:
                    await socket.send_message(await socket.get_message())
            except ConnectionClosed:
                pass
        await connection.close_in_order()
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await trio.aclose_forcefully(connection.stream)
