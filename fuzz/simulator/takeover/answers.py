"""Strict reader of all bytes that a client gets on one connection: answers, event streams, frames.

What is read is comparable between two runs: how tokens came together in events does not count, nor
ids and times. Everything else does, to the byte.
"""

import json
import re
from collections.abc import Generator
from typing import Any

import attrs

from ...doubles.websocket_frames import CLOSE, PING, TEXT, FrameFault, FrameReader
from ..streams import Violation

Step = Generator[None, None, Any]
DELTA = "response.output_text.delta"
_TERMINAL = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
# What tokens bring, which events may share out in any way.
_SUMS = ("delta", "content", "token_ids", "logprobs")
_ID = re.compile(r"\b(resp|msg|chatcmpl|req)[_-][0-9a-f]+")
_EVENT = re.compile(rb"(?:event: [a-z_.]+\n)?(?:id: [\w.-]+\n)?data: (.*)")
_TIMES = re.compile(r'"(created|created_at|completed_at|cached_tokens)": \d+')


def comparable(value: Any) -> str:
    """As text, with ids numbered in the order in which they come, and without times."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"{found[1]} {len(names)}")

    return _TIMES.sub(r'"\1": 0', _ID.sub(name, json.dumps(value)))


@attrs.define(eq=False)
class EventLog:
    """Events of one stream, deltas that follow each other as one."""

    events: list[Any] = attrs.field(factory=list)
    tokens: int = 0
    ends: int = 0
    _number: int = -1

    def add(self, event: dict[str, Any]) -> None:
        """Raises `Violation` if its number does not grow."""
        if event.get("type") == "response.created":
            self._number = -1
        number = event.get("sequence_number", self._number + 1)
        if number <= self._number:
            raise Violation(f"event number {number} came after {self._number}")
        self._number = number
        self.ends += event.get("type") in _TERMINAL
        part = _part(event)
        self.tokens += len(part.get("token_ids") or [])
        if part is not event and self.events and _shell(self.events[-1]) == _shell(event):
            before = _part(self.events[-1])
            for key in _SUMS:
                if part.get(key):
                    before[key] = (before.get(key) or type(part[key])()) + part[key]
        else:
            self.events.append(event)
        if part is not event:
            event.pop("sequence_number", None)
            event.pop("token_index", None)


def _part(event: dict[str, Any]) -> dict[str, Any]:
    """Where a delta has what tokens bring, of both protocols; the event itself if it is none."""
    if event.get("type") == DELTA:
        return event["part"] if "part" in event else _fold(event)
    choices = event.get("choices")
    if choices and choices[0].get("finish_reason") is None and "role" not in choices[0]["delta"]:
        return _fold_choice(choices[0])
    return event


def _fold(event: dict[str, Any]) -> dict[str, Any]:
    event["part"] = {key: event.pop(key) for key in _SUMS if key in event}
    part: dict[str, Any] = event["part"]
    return part


def _fold_choice(choice: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = choice["delta"]
    for key in ("token_ids", "logprobs"):
        if key in choice:
            part[key] = choice.pop(key)
    return part


def _shell(event: dict[str, Any]) -> dict[str, Any]:
    """A delta without what tokens bring and its number."""
    shell = {key: each for key, each in event.items() if key not in ("sequence_number", "part")}
    shell.pop("token_index", None)
    if shell.get("choices"):
        shell["choices"] = [{**shell["choices"][0], "delta": None}]
    return shell


@attrs.define(eq=False)
class ByteReader:
    """All that comes on one connection, as far as it has come."""

    # Of each answer its status and headers, and its body or its events.
    answers: list[Any] = attrs.field(factory=list)
    # {lane: its events}, and the close frame.
    lanes: dict[str | None, EventLog] = attrs.field(factory=dict)
    stream: EventLog = attrs.field(factory=EventLog)
    # Answers that are whole.
    whole: int = 0
    is_socket: bool = False
    close_code: int = 0
    size: int = 0
    # To be answered.
    pings: list[bytes] = attrs.field(factory=list)
    _rest: bytearray = attrs.field(factory=bytearray)
    _frames: FrameReader = attrs.field(factory=FrameReader)
    _steps: Step = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._steps = self._read()

    def feed(self, data: bytes) -> None:
        """Raises `Violation` for what is no answer, or no frame."""
        self._rest += data
        self.size += len(data)
        try:
            next(self._steps)
        except (ValueError, LookupError, FrameFault) as error:
            raise Violation(f"no answer at byte {self.size - len(self._rest)}: {error}") from error

    @property
    def is_between(self) -> bool:
        """No answer is half read."""
        return not self._rest and self.whole == len(self.answers)

    def said(self) -> list[str]:
        """Everything, comparable."""
        lanes = sorted((str(lane), log.events) for lane, log in self.lanes.items())
        return [comparable(each) for each in (*self.answers, *lanes, self.close_code)]

    # ---- steps

    def _until(self, mark: bytes) -> Step:
        while (place := self._rest.find(mark)) < 0:
            yield
        return (yield from self._take(place + len(mark)))[: -len(mark)]

    def _take(self, size: int) -> Step:
        while len(self._rest) < size:
            yield
        data = bytes(self._rest[:size])
        del self._rest[:size]
        return data

    def _read(self) -> Step:
        while True:
            head: bytes = yield from self._until(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            version, status, _ = first.split(b" ", 2)
            if version != b"HTTP/1.1":
                raise ValueError(f"{first[:40]!r} begins no answer")
            headers = dict(line.split(b": ", 1) for line in lines)
            for drawn in (b"x-request-id", b"date"):
                headers.pop(drawn, None)
            shown = sorted(f"{name.decode()}: {value.decode()}" for name, value in headers.items())
            self.answers.append([first.decode(), shown])
            if status == b"101":
                yield from self._read_frames()
            if headers.get(b"transfer-encoding") == b"chunked":
                yield from self._read_events()
            elif status != b"100":
                body = yield from self._take(int(headers[b"content-length"]))
                self.answers[-1].append(json.loads(body))
            self.whole += 1

    def _read_events(self) -> Step:
        log = self.stream = EventLog()
        self.answers[-1].append(log.events)
        text, size = b"", -1
        while size:
            line = yield from self._until(b"\r\n")
            size = int(line, 16)
            if line != b"%x" % size:
                raise ValueError(f"{line!r} is no chunk's size")
            text += yield from self._take(size)
            if (yield from self._take(2)) != b"\r\n":
                raise ValueError("a chunk has another size")
            *events, text = text.split(b"\n\n")
            for event in events:
                if (found := _EVENT.fullmatch(event)) is None:
                    raise ValueError(f"{event[:40]!r} is no event")
                data = found[1]
                log.add({"type": "[DONE]"} if data == b"[DONE]" else json.loads(data))
        if text:
            raise ValueError("half an event")

    def _read_frames(self) -> Step:
        self.is_socket = True
        while True:
            data, self._rest = bytes(self._rest), bytearray()
            for opcode, payload in self._frames.feed(data):
                if opcode == TEXT and not self.close_code:
                    event = json.loads(payload)
                    self.lanes.setdefault(event.get("stream_id"), EventLog()).add(event)
                elif opcode == PING:
                    self.pings.append(payload)
                elif opcode == CLOSE and not self.close_code:
                    self.close_code = int.from_bytes(payload[:2], "big")
                else:
                    raise ValueError(f"a frame of kind {opcode}, close frame {self.close_code}")
            yield
