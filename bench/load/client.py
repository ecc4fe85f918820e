"""The one face of all clients: what the shell that owns the sockets asks of them.

Sans-IO: bytes in, bytes out, and histories filled. One client is one connection. Must not know
sockets, nor which protocol an implementation speaks.
"""

from typing import Protocol

import attrs

from .history import Outcome, RequestHistory
from .schedule import Ask


class ClientFault(Exception):
    """What the server sent makes no sense; the connection is of no further use."""


@attrs.frozen(kw_only=True)
class Target:
    """Where requests go. `key` is the API key, "" for none."""

    host: str
    port: int
    key: str = ""

    @property
    def address(self) -> str:
        """As a Host header has it."""
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
    """One connection's machine."""

    @property
    def free(self) -> int:
        """How many requests it takes now; 0 while it opens, and for ever once it has ended."""

    @property
    def has_ended(self) -> bool:
        """Whether the server has said that this connection ends, or nothing can come of it."""

    def open(self) -> bytes:
        """What is sent first."""

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
