"""Clients of an OpenAI-compatible server of others: streamed completions, chat where it has no
others.

They know nothing but the protocol: a stream that is cut cannot be read on, as it has no numbers.
"""

import contextlib
import json
from typing import Any
from urllib.parse import urlsplit

import attrs
import h11
import trio

from ....engine.errors import InvalidParameter
from ...doubles.clients import HttpClient
from ..clients import Lost, losses, open_stream
from ..history import Ending, StreamHistory

LOOPBACK = ("127.0.0.1", "localhost")
DONE = "[DONE]"
SUCCESS = range(200, 300)
_HEADERS = {"content-type": "application/json", "authorization": "Bearer chaos"}


@attrs.frozen
class TargetUrl:
    """Where the server's API is, on this machine."""

    port: int
    base: str

    @classmethod
    def of(cls, url: str) -> "TargetUrl":
        """Raises `InvalidParameter`."""
        parts = urlsplit(url)
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.scheme != "http" or parts.hostname not in LOOPBACK or not port:
            raise InvalidParameter(
                "target_url", f"must be http://127.0.0.1:PORT/v1 or the like, not {url!r}"
            )
        return cls(port, parts.path.rstrip("/"))


@attrs.frozen
class TargetClient:
    """Asks for completions of one model: what a prompt is followed by, greedily."""

    url: TargetUrl
    model: str
    # "/completions" or "/chat/completions".
    path: str
    tokens: int
    # Whether the server knows the field; some refuse what they do not know.
    ignores_eos: bool = True

    def body(self, prompt: str, tokens: int, *, stream: bool) -> dict[str, Any]:
        """Greedy, and no shorter than that, where the server knows how."""
        if self.path.startswith("/chat"):
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        else:
            asked = {"prompt": prompt}
        if self.ignores_eos:
            asked["ignore_eos"] = True
        fixed = {"max_tokens": tokens, "temperature": 0, "stream": stream}
        return {"model": self.model, **asked, **fixed}

    async def serves(self) -> bool:
        """Whether it answers a request of one token."""
        body = self.body("Once", 1, stream=False)
        try:
            status, _ = await ask_target(self.url, "POST", self.path, body)
        except Lost:
            return False
        return status in SUCCESS

    async def read(self, prompt: str, history: StreamHistory) -> None:
        """One stream to its end, whatever that is."""
        try:
            async with open_stream(self.url.port) as stream:
                await self._read(HttpClient(stream), prompt, history)
        except Lost as lost:
            history.lose(str(lost), trio.current_time())

    async def _read(self, http: HttpClient, prompt: str, history: StreamHistory) -> None:
        body = self.body(prompt, self.tokens, stream=True)
        with losses():
            await http.send("POST", self.url.base + self.path, body, _HEADERS)
        status, data, is_finished = 0, b"", False
        while history.ending is None:
            with losses():
                event = await http.next_event()
            now = trio.current_time()
            match event:
                case h11.Response():
                    status = event.status_code
                case h11.Data():
                    *lines, data = (data + bytes(event.data)).split(b"\n")
                    for line in lines if status in SUCCESS else ():
                        is_finished |= take_line(line.strip(), history, now)
                case h11.EndOfMessage() if status not in SUCCESS:
                    history.end(Ending.REFUSED, now, code=f"HTTP {status}")
                case h11.EndOfMessage() if is_finished:
                    history.end(Ending.FINISHED, now)
                case h11.EndOfMessage() | h11.ConnectionClosed():
                    raise Lost("it ended without a finish reason")


def take_line(line: bytes, history: StreamHistory, now: float) -> bool:
    """Take a line of an event stream; whether it says that the answer is whole."""
    if not line.startswith(b"data:"):
        return False
    text = line.removeprefix(b"data:").strip().decode()
    if text == DONE:
        return False
    event = json.loads(text)
    if "error" in event:
        history.end(Ending.FAILED, now, code="error", message=str(event["error"])[:200])
        return False
    is_finished = False
    for choice in event.get("choices", ()):
        piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        history.take_text(piece, now)
        is_finished |= choice.get("finish_reason") in ("length", "stop")
    return is_finished


async def ask_target(
    url: TargetUrl, method: str, path: str, body: object = None
) -> tuple[int, Any]:
    """Status and decoded JSON, None if it is none. Raises `Lost`."""
    async with open_stream(url.port) as stream:
        with losses():
            answer = await HttpClient(stream).request(method, url.base + path, body, _HEADERS)
    with contextlib.suppress(ValueError):
        return answer.status, json.loads(answer.body)
    return answer.status, None
