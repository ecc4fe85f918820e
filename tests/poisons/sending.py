"""Requests that carry a poison to where it acts, and what they are answered."""

from collections.abc import AsyncIterator

import attrs
import httpx
import msgspec
import trio

from triolet.fuzz.chaos.poisoned_forms import FormPoison
from triolet.fuzz.chaos.poisoned_frontend import FrontendPoison
from triolet.fuzz.doubles.clients import SocketClient

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# A form that crashes its check is the fault of a field.
REFUSED, REFUSED_FORM = "request_quarantined", "invalid_parameter"
# Of HTTP; of a close frame where the request of a frame is not known.
REFUSED_STATUS, REFUSED_CLOSE = 400, 1008


@attrs.frozen
class PoisonAnswer:
    """Status of an answer or of a close frame, and the code of the error."""

    status: int
    code: str

    @property
    def is_refusal(self) -> bool:
        """Whether the poison was refused for what it has done."""
        is_named = self.code in (REFUSED, REFUSED_FORM)
        return self.status in (REFUSED_STATUS, REFUSED_CLOSE) and is_named


async def send_poison(
    client: httpx.AsyncClient, poison: FormPoison | FrontendPoison, text: str
) -> PoisonAnswer:
    """Send a text with a poison's word where that word acts."""
    body: dict[str, object] = {"prompt": "a", "max_tokens": 2}
    match poison:
        case FrontendPoison.FRAME:
            return await _send_frame(client.base_url, text)
        case FrontendPoison.HEAD:
            answer = await client.post(COMPLETIONS, json=body, headers={"x-note": text})
        case FrontendPoison.CHUNKS:
            data = msgspec.json.encode({**body, "prompt": text})
            kind = {"content-type": "application/json"}
            answer = await client.post(COMPLETIONS, content=_in_chunks(data), headers=kind)
        case FrontendPoison.RENDER:
            chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
            answer = await client.post(CHAT, json=chat)
        case FrontendPoison():
            answer = await client.post(COMPLETIONS, json={**body, "prompt": text})
        case FormPoison():
            form = {"structured_outputs": {"choice": [text, "other"]}, "max_tokens": 8}
            answer = await client.post(COMPLETIONS, json={**body, **form})
    error = answer.json().get("error") or {"code": ""}
    return PoisonAnswer(answer.status_code, error["code"])


async def _in_chunks(data: bytes) -> AsyncIterator[bytes]:
    """One chunk, whose length is not declared before."""
    yield data


async def _send_frame(url: httpx.URL, text: str) -> PoisonAnswer:
    async with await trio.open_tcp_stream(url.host, url.port or 80) as stream:
        socket = SocketClient(stream)
        assert await socket.handshake() == 101
        await socket.send(text)
        code = await socket.close_code()
    assert socket.closed is not None
    return PoisonAnswer(code, (socket.closed[1] or "").partition(":")[0])
