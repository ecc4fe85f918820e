"""A client of the HTTP routes: one request at a time on one kept-alive connection.

Sans-IO: bytes in, bytes out, and histories filled. Responses streamed (`sse`) or whole (`http`),
and streamed chat completions (`chat`). Must not know sockets or schedules.
"""

import enum

import attrs

from .answers import AnswerFault, AnswerReader
from .client import ClientFault, Target, break_off
from .events import (
    EventFault,
    chat_body,
    note_chat_chunk,
    note_refusal,
    note_response_event,
    note_whole_answer,
    read_response_event,
    response_body,
)
from .history import Outcome, RequestHistory
from .schedule import Ask

_OK = 200
_EVENT_END = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"


class HttpKind(enum.StrEnum):
    """What is asked for."""

    SSE = "sse"  # /v1/responses, streamed
    CHAT = "chat"  # /v1/chat/completions, streamed
    HTTP = "http"  # /v1/responses, whole


@attrs.define(eq=False)
class HttpClient:
    """One connection."""

    target: Target
    kind: HttpKind
    has_ended: bool = attrs.field(default=False, init=False)
    _answer: AnswerReader = attrs.field(factory=AnswerReader, init=False)
    # Body bytes that are no whole event yet; the whole body where nothing is streamed.
    _body: bytes = attrs.field(default=b"", init=False)
    _running: RequestHistory | None = attrs.field(default=None, init=False)
    _ended: list[RequestHistory] = attrs.field(factory=list, init=False)

    @property
    def free(self) -> int:
        """One, unless a request runs."""
        return 0 if self.has_ended or self._running is not None else 1

    def open(self) -> bytes:
        """HTTP waits for a request."""
        return b""

    def start(self, ask: Ask, now: float) -> tuple[RequestHistory, bytes]:
        """Begin the one request."""
        assert self._running is None
        self._running = RequestHistory(ask.number, ask.due_s, now)
        if self.kind is HttpKind.CHAT:
            path = "/v1/chat/completions"
            body = chat_body(ask, stream=True, stream_options={"include_usage": True})
        else:
            path = "/v1/responses"
            body = response_body(ask, stream=self.kind is HttpKind.SSE)
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
            if self.kind is not HttpKind.HTTP and self._answer.status == _OK:
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
            if self.kind is HttpKind.SSE:
                note_response_event(read_response_event(data), history, now)
            elif data == _DONE:
                history.handle_end(Outcome.COMPLETED, now)
            else:
                note_chat_chunk(data, history, now)

    def _end(self, history: RequestHistory, now: float) -> None:
        if self._answer.status != _OK:
            note_refusal(self._answer.status, self._body, history, now)
        elif self.kind is HttpKind.HTTP:
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
        """What runs is broken off."""
        self.has_ended = True
        running = [] if self._running is None else [self._running]
        self._ended += break_off(running, reason, now)
        self._running = None
