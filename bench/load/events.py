"""Parsers of answers and events, as far as a load generator needs them, and no further.

Sans-IO: bytes in, histories filled. HTTP/1.1 answers are cut into head and body (a length, or
chunks: what a server of ours sends), events of OpenAI's protocols are read for what figures are
made of: a load generator must cost less than what it measures.
"""

import attrs
import msgspec

from .client import Outcome, RequestHistory
from .schedule import Ask

HEAD_END = b"\r\n\r\n"
_CHUNKED = b"transfer-encoding: chunked"
_LENGTH = b"content-length:"


class AnswerFault(Exception):
    """Bytes that are no answer we understand; the connection is of no further use."""


@attrs.define(eq=False)
class AnswerReader:
    """Reader of a connection's answers, one after the other. `next_answer` begins another."""

    # 0 until the head of the present answer is here.
    status: int = attrs.field(default=0, init=False)
    # The whole answer is here.
    is_whole: bool = attrs.field(default=False, init=False)
    # The server closes after this answer.
    closes: bool = attrs.field(default=False, init=False)
    # Bytes behind the present answer, or behind a head that has no body (an upgrade).
    rest: bytes = attrs.field(default=b"", init=False)
    _chunked: bool = attrs.field(default=False, init=False)
    # Body bytes still to come; of the present chunk when chunked.
    _left: int = attrs.field(default=0, init=False)

    def next_answer(self) -> None:
        """The present answer was taken; bytes that came behind it belong to the next."""
        self.status, self.is_whole, self.closes, self._chunked, self._left = (
            0,
            False,
            False,
            False,
            0,
        )

    def feed(self, data: bytes) -> bytes:
        """Body bytes that `data` completes. Raises `AnswerFault`."""
        self.rest += data
        if not self.status and not self._read_head():
            return b""
        if self._chunked:
            return self._read_chunks()
        body, self.rest = self.rest[: self._left], self.rest[self._left :]
        self._left -= len(body)
        self.is_whole = self._left == 0
        return body

    def _read_head(self) -> bool:
        head, found, rest = self.rest.partition(HEAD_END)
        if not found:
            return False
        lower = head.lower()
        try:
            self.status = int(head[9:12])
            if _LENGTH in lower:
                self._left = int(lower.partition(_LENGTH)[2].partition(b"\r\n")[0])
        except ValueError as error:
            raise AnswerFault(f"a head that makes no sense: {head[:60]!r}") from error
        self._chunked = _CHUNKED in lower
        self.closes = b"\r\nconnection: close" in lower
        self.rest = rest
        return True

    def _read_chunks(self) -> bytes:
        """Chunks are cut at their announced sizes; a size line that is not whole waits."""
        data, place, parts = self.rest, 0, []
        while True:
            if self._left:
                # The two bytes behind a chunk belong to it and are dropped.
                part = data[place : place + self._left]
                if len(part) < self._left:
                    break
                parts.append(part[:-2])
                place += self._left
                self._left = 0
            line_end = data.find(b"\r\n", place)
            if line_end < 0:
                break
            try:
                size = int(data[place:line_end], 16)
            except ValueError as error:
                raise AnswerFault(f"no chunk size: {data[place : place + 20]!r}") from error
            if size == 0:
                if len(data) < line_end + 4:
                    break
                place, self.is_whole = line_end + 4, True
                break
            place, self._left = line_end + 2, size + 2
        self.rest = data[place:]
        return b"".join(parts)


_DELTA = "response.output_text.delta"
_ENDS = {
    "response.completed": Outcome.COMPLETED,
    "response.incomplete": Outcome.COMPLETED,
    "response.failed": Outcome.FAILED,
}


class EventFault(Exception):
    """Bytes that are no event of the protocol; the connection is of no further use."""


@attrs.frozen
class ErrorBody:
    """The error object, wherever it is."""

    code: str | None = None
    type: str | None = None

    @property
    def kind(self) -> str:
        """Name by which errors are counted."""
        return self.code or self.type or "error"


@attrs.frozen
class Usage:
    """Tokens as the server counts them; Responses and chat name them differently."""

    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def note(self, history: RequestHistory) -> None:
        """Write them down."""
        history.handle_usage(
            self.input_tokens or self.prompt_tokens, self.output_tokens or self.completion_tokens
        )


@attrs.frozen
class ResponseObject:
    """Response object, as far as it matters here."""

    id: str = ""
    status: str = ""
    usage: Usage | None = None
    error: ErrorBody | None = None


@attrs.frozen
class ResponseEvent:
    """Event of the Responses protocol."""

    type: str
    sequence_number: int = -1
    stream_id: str | None = None
    delta: str = ""
    token_ids: list[int] = attrs.field(factory=list)
    response: ResponseObject | None = None
    error: ErrorBody | None = None


@attrs.frozen
class ChatDelta:
    """Delta of a chunk."""

    content: str | None = None


@attrs.frozen
class ChatChoice:
    """Choice of a chunk, or of a whole completion (which has no `delta`)."""

    delta: ChatDelta | None = None
    finish_reason: str | None = None
    token_ids: list[int] = attrs.field(factory=list)


@attrs.frozen
class ChatChunk:
    """Chunk of a chat completion, or the whole of it."""

    id: str = ""
    choices: list[ChatChoice] = attrs.field(factory=list)
    usage: Usage | None = None
    error: ErrorBody | None = None


@attrs.frozen
class ErrorAnswer:
    """The body of a refusal."""

    error: ErrorBody | None = None


_response_event = msgspec.json.Decoder(ResponseEvent)
_chat_chunk = msgspec.json.Decoder(ChatChunk)
_response_object = msgspec.json.Decoder(ResponseObject)
_error_answer = msgspec.json.Decoder(ErrorAnswer)


def response_body(ask: Ask, *, with_token_ids: bool = False, **more: object) -> bytes:
    """A request of the Responses protocol: exactly so many tokens, whatever the model says."""
    runtime: dict[str, object] = {"seed": ask.seed, "ignore_eos": True}
    if ask.merge_ms:
        runtime["merge_ms"] = ask.merge_ms
    if with_token_ids:
        runtime["token_ids"] = True
    body = {
        "input": ask.prompt,
        "max_output_tokens": ask.tokens,
        "runtime": runtime,
        **more,
    }
    return msgspec.json.encode(body)


def chat_body(ask: Ask, **more: object) -> bytes:
    """The same as a chat completion."""
    body = {
        "messages": [{"role": "user", "content": ask.prompt}],
        "max_completion_tokens": ask.tokens,
        "seed": ask.seed,
        "runtime": {"ignore_eos": True},
        **more,
    }
    return msgspec.json.encode(body)


def read_response_event(data: bytes) -> ResponseEvent:
    """Raises `EventFault`."""
    try:
        return _response_event.decode(data)
    except msgspec.MsgspecError as error:
        raise EventFault(f"no event: {data[:60]!r}") from error


def note_response_event(event: ResponseEvent, history: RequestHistory, now: float) -> bool:
    """Write an event down; True when it is the request's last."""
    if event.sequence_number >= 0:
        history.handle_event(event.sequence_number, now)
    if event.type == _DELTA:
        history.handle_delta(event.delta, event.token_ids, now)
        return False
    if event.type == "error":
        kind = event.error.kind if event.error is not None else "error"
        history.handle_end(Outcome.REFUSED, now, kind)
        return True
    response = event.response
    if response is None:
        return False
    if event.type not in _ENDS:
        history.response_id = response.id
        return False
    _note_response_end(response, _ENDS[event.type], history, now)
    return True


def _note_response_end(
    response: ResponseObject, outcome: Outcome, history: RequestHistory, now: float
) -> None:
    history.response_id = response.id
    if response.usage is not None:
        response.usage.note(history)
    error = response.error.kind if response.error is not None else ""
    if response.status == "cancelled":
        outcome = Outcome.CANCELLED
    history.handle_end(outcome, now, error)


def note_chat_chunk(data: bytes, history: RequestHistory, now: float) -> None:
    """Write one chunk down; a stream of them ends by a mark of its own. Raises `EventFault`."""
    try:
        chunk = _chat_chunk.decode(data)
    except msgspec.MsgspecError as error:
        raise EventFault(f"no chunk: {data[:60]!r}") from error
    history.handle_event(len(history.numbers), now)
    history.response_id = chunk.id or history.response_id
    if chunk.error is not None:
        history.handle_end(Outcome.FAILED, now, chunk.error.kind)
    if chunk.usage is not None:
        chunk.usage.note(history)
    for choice in chunk.choices:
        delta = choice.delta
        if delta is not None and (delta.content or choice.token_ids):
            history.handle_delta(delta.content or "", choice.token_ids, now)


def note_whole_answer(data: bytes, history: RequestHistory, now: float) -> None:
    """Write the body of an answer down that was not streamed. Raises `EventFault`."""
    try:
        response = _response_object.decode(data)
    except msgspec.MsgspecError as error:
        raise EventFault(f"no response: {data[:60]!r}") from error
    _note_response_end(response, Outcome.COMPLETED, history, now)


def note_refusal(status: int, data: bytes, history: RequestHistory, now: float) -> None:
    """Write down an answer whose status is not 200."""
    try:
        body = _error_answer.decode(data).error
    except msgspec.MsgspecError:
        body = None
    kind = body.kind if body is not None else "error"
    history.handle_end(Outcome.REFUSED, now, f"{status} {kind}")
