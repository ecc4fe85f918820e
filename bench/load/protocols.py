"""Clients of the HTTP routes and of the Responses protocol over WebSocket.

Sans-IO: bytes in, bytes out, and histories filled. HTTP has one request at a time on a kept-alive
connection: Responses streamed (`sse`) or whole (`http`), and streamed chat completions (`chat`).
A WebSocket has up to sixteen lanes.
"""

import attrs

from ...fuzz.doubles.websocket_frames import (
    CLOSE,
    PING,
    PONG,
    TEXT,
    FrameFault,
    FrameReader,
    encode_frame,
)
from ..options import Protocol
from .client import ClientFault, Outcome, RequestHistory, Target, break_off
from .events import (
    AnswerFault,
    AnswerReader,
    EventFault,
    chat_body,
    note_chat_chunk,
    note_refusal,
    note_response_event,
    note_whole_answer,
    read_response_event,
    response_body,
)
from .schedule import Ask

_OK = 200
_EVENT_END = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"


@attrs.define(eq=False)
class HttpClient:
    """Machine of one HTTP connection."""

    target: Target
    kind: Protocol
    has_ended: bool = attrs.field(default=False, init=False)
    _answer: AnswerReader = attrs.field(factory=AnswerReader, init=False)
    # Body bytes that are no whole event yet; the whole body where nothing is streamed.
    _body: bytes = attrs.field(default=b"", init=False)
    _running: RequestHistory | None = attrs.field(default=None, init=False)
    _ended: list[RequestHistory] = attrs.field(factory=list, init=False)

    @property
    def free(self) -> int:
        """Free places: one, unless a request runs."""
        return 0 if self.has_ended or self._running is not None else 1

    def open(self) -> bytes:
        """HTTP waits for a request."""
        return b""

    def start(self, ask: Ask, now: float) -> tuple[RequestHistory, bytes]:
        """Begin the one request."""
        assert self._running is None
        self._running = RequestHistory(ask.number, ask.due_s, now)
        if self.kind is Protocol.CHAT:
            path = "/v1/chat/completions"
            body = chat_body(ask, stream=True, stream_options={"include_usage": True})
        else:
            path = "/v1/responses"
            body = response_body(ask, stream=self.kind is Protocol.SSE)
        head = self.target.head(
            "POST", path, Content_Type="application/json", Content_Length=str(len(body))
        )
        return self._running, head + body

    def receive(self, data: bytes, now: float) -> bytes:
        """Body bytes to events to the history. Nothing is ever to be sent at once."""
        history = self._running
        if history is None:
            raise ClientFault("bytes that nobody asked for")
        try:
            self._body += self._answer.feed(data)
            if self.kind is not Protocol.HTTP and self._answer.status == _OK:
                self._read_events(history, now)
            if self._answer.is_whole:
                self._end(history, now)
        except (AnswerFault, EventFault) as fault:
            raise ClientFault(str(fault)) from fault
        return b""

    def _read_events(self, history: RequestHistory, now: float) -> None:
        *events, self._body = self._body.split(_EVENT_END)
        for event in events:
            data = event[event.find(_DATA) + len(_DATA) :]
            if self.kind is Protocol.SSE:
                note_response_event(read_response_event(data), history, now)
            elif data == _DONE:
                history.handle_end(Outcome.COMPLETED, now)
            else:
                note_chat_chunk(data, history, now)

    def _end(self, history: RequestHistory, now: float) -> None:
        if self._answer.status != _OK:
            note_refusal(self._answer.status, self._body, history, now)
        elif self.kind is Protocol.HTTP:
            note_whole_answer(self._body, history, now)
        history.handle_end(Outcome.BROKEN, now, "the answer ended without a last event")
        self.has_ended = self._answer.closes
        self._running, self._body = None, b""
        self._answer.next_answer()
        self._ended.append(history)

    def take_ended(self) -> list[RequestHistory]:
        """The request that ended since the last time, if one has."""
        ended, self._ended = self._ended, []
        return ended

    def handle_closed(self, reason: str, now: float) -> None:
        """Break off the running request."""
        self.has_ended = True
        running = [] if self._running is None else [self._running]
        self._ended += break_off(running, reason, now)
        self._running = None


PATH = "/v1/responses"
# The server's bound on lanes that are active at once, as OpenAI's.
LANES_MAX = 16
# Any 16 bytes will do: we do not check the answer to it.
_KEY = "dHJpb2xldCBsb2FkIGdlbg=="
_SWITCHING = 101


@attrs.define(eq=False)
class LanesClient:
    """Machine of one WebSocket. A lane runs one request at a time, so that places are lanes."""

    target: Target
    lanes: int = LANES_MAX
    # Asks for token ids in every delta: the chaos harness counts them.
    with_token_ids: bool = False
    has_ended: bool = attrs.field(default=False, init=False)
    # The close code that the server sent; 0 before.
    close_code: int = attrs.field(default=0, init=False)
    _answer: AnswerReader = attrs.field(factory=AnswerReader, init=False)
    _frames: FrameReader = attrs.field(factory=FrameReader, init=False)
    _is_open: bool = attrs.field(default=False, init=False)
    # {lane: its request}
    _running: dict[str, RequestHistory] = attrs.field(factory=dict, init=False)
    _free: list[str] = attrs.field(init=False)
    _ended: list[RequestHistory] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._free = [f"lane-{number}" for number in range(self.lanes)]

    @property
    def free(self) -> int:
        """Lanes without a request."""
        return len(self._free) if self._is_open and not self.has_ended else 0

    def open(self) -> bytes:
        """The handshake."""
        return self.target.head(
            "GET",
            PATH,
            Upgrade="websocket",
            Connection="Upgrade",
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Key=_KEY,
        )

    def start(self, ask: Ask, now: float) -> tuple[RequestHistory, bytes]:
        """Begin one request in a free lane."""
        lane = self._free.pop()
        history = self._running[lane] = RequestHistory(ask.number, ask.due_s, now)
        body = response_body(
            ask, with_token_ids=self.with_token_ids, type="response.create", stream_id=lane
        )
        return history, encode_frame(TEXT, body)

    def receive(self, data: bytes, now: float) -> bytes:
        """Frames to events to histories; returns pongs and the answer to a close."""
        try:
            if not self._is_open:
                data = self._open(data)
            reply = b""
            for opcode, payload in self._frames.feed(data):
                if opcode == TEXT:
                    self._note(payload, now)
                else:
                    reply += self._control(opcode, payload)
            return reply
        except (AnswerFault, EventFault, FrameFault) as fault:
            raise ClientFault(str(fault)) from fault

    def _open(self, data: bytes) -> bytes:
        self._answer.feed(data)
        if not self._answer.status:
            return b""
        if self._answer.status != _SWITCHING:
            raise ClientFault(f"the handshake was answered {self._answer.status}")
        self._is_open = True
        return self._answer.rest

    def _note(self, payload: bytes, now: float) -> None:
        event = read_response_event(payload)
        history = self._running.get(event.stream_id or "")
        if history is not None and note_response_event(event, history, now):
            assert event.stream_id is not None
            del self._running[event.stream_id]
            self._free.append(event.stream_id)
            self._ended.append(history)

    def _control(self, opcode: int, payload: bytes) -> bytes:
        if opcode == PING:
            return encode_frame(PONG, payload)
        if opcode == CLOSE:
            self.has_ended = True
            self.close_code = int.from_bytes(payload[:2], "big")
            return encode_frame(CLOSE, payload[:2])
        return b""

    def take_ended(self) -> list[RequestHistory]:
        """The requests that ended since the last time."""
        ended, self._ended = self._ended, []
        return ended

    def handle_closed(self, reason: str, now: float) -> None:
        """Everything that runs is broken off."""
        self.has_ended = True
        if self.close_code:
            reason = f"closed {self.close_code}"
        self._ended += break_off(list(self._running.values()), reason, now)
        self._running.clear()
