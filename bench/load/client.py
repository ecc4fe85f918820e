"""Client of a load: one connection's machine, and the history of each of its requests.

Sans-IO: bytes in, bytes out, and histories filled: every event with its number and time, and the
end. Times are seconds since the run began. `protocols` has the implementations, `runner` owns the
sockets.
"""

import enum
import math
from array import array
from typing import Protocol

import attrs

from .schedule import Ask


class Outcome(enum.StrEnum):
    """How a request ended, as its client saw it."""

    RUNNING = "running"  # it has not
    COMPLETED = "completed"  # in order: completed, or as long as asked for
    CANCELLED = "cancelled"  # in order, but early
    FAILED = "failed"  # it began, and ended with an error event
    REFUSED = "refused"  # an error instead of a beginning
    BROKEN = "broken"  # the connection ended first, or what came made no sense
    LATE = "late"  # no end when the run's patience was over


@attrs.define(eq=False)
class RequestHistory:
    """History of a request; `events` in order of arrival, none if it does not stream."""

    number: int
    due_s: float
    sent_s: float
    response_id: str = attrs.field(default="", init=False)
    # Sequence number of every event (its place, where the protocol has none) and its time.
    numbers: "array[int]" = attrs.field(factory=lambda: array("q"), init=False)
    times_s: "array[float]" = attrs.field(factory=lambda: array("d"), init=False)
    # Times and texts of the events with text or tokens alone.
    delta_times_s: "array[float]" = attrs.field(factory=lambda: array("d"), init=False)
    texts: list[str] = attrs.field(factory=list, init=False)
    # Output tokens, where the client asked for their ids.
    token_ids: list[int] = attrs.field(factory=list, init=False)
    outcome: Outcome = attrs.field(default=Outcome.RUNNING, init=False)
    # Kind of the error; "" without one.
    error: str = attrs.field(default="", init=False)
    ended_s: float = attrs.field(default=math.nan, init=False)
    # Counts of the server, known at the end.
    input_tokens: int = attrs.field(default=0, init=False)
    output_tokens: int = attrs.field(default=0, init=False)

    @property
    def text(self) -> str:
        """Text that came."""
        return "".join(self.texts)

    def handle_event(self, number: int, now: float) -> None:
        """Any event came."""
        self.numbers.append(number)
        self.times_s.append(now)

    def handle_delta(self, text: str, token_ids: list[int], now: float) -> None:
        """The event that came has new output in it."""
        self.delta_times_s.append(now)
        self.texts.append(text)
        if token_ids:
            self.token_ids += token_ids

    def handle_usage(self, input_tokens: int, output_tokens: int) -> None:
        """The server said how many tokens there were."""
        self.input_tokens, self.output_tokens = input_tokens, output_tokens

    def handle_end(self, outcome: Outcome, now: float, error: str = "") -> None:
        """Note the end; only the first one counts."""
        if self.outcome is Outcome.RUNNING:
            self.outcome, self.ended_s, self.error = outcome, now, error


class ClientFault(Exception):
    """Nonsense from the server; the connection is of no further use."""


@attrs.frozen(kw_only=True)
class Target:
    """Address of a server. `key` is the API key, "" for none."""

    host: str
    port: int
    key: str = ""

    @property
    def address(self) -> str:
        """Address for a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def head(self, method: str, path: str, **headers: str) -> bytes:
        """A request head with what every request has."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address}"]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("ascii")


class Client(Protocol):
    """Machine of one connection."""

    @property
    def free(self) -> int:
        """How many requests it takes now; 0 while it opens, and for ever once it has ended."""

    @property
    def has_ended(self) -> bool:
        """Whether the server has said that this connection ends, or nothing can come of it."""

    def open(self) -> bytes:
        """Bytes to send first."""

    def start(self, ask: Ask, now: float) -> tuple[RequestHistory, bytes]:
        """Begin one request: its history, and the bytes to send."""

    def receive(self, data: bytes, now: float) -> bytes:
        """Bytes came; returns what is to be sent at once. Raises `ClientFault`."""

    def take_ended(self) -> list[RequestHistory]:
        """The requests that ended since the last time."""

    def handle_closed(self, reason: str, now: float) -> None:
        """The connection is gone; what runs has ended by that."""


def break_off(running: list[RequestHistory], reason: str, now: float) -> list[RequestHistory]:
    """End these as broken; returns them."""
    for history in running:
        history.handle_end(Outcome.BROKEN, now, reason)
    return running
