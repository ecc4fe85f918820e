"""Calls from a frontend to the root: admins ask over HTTP what commands ask over its own socket.

One at a time is enough for operators; the closed list of questions is the root's own.
"""

from collections.abc import Awaitable, Callable

import attrs
import trio

from ...runtime.messages import ControlCall, RootCall, RootReply
from ..errors import RETRY_AFTER_ENGINE_S, SERVER_ERROR, ApiError

# The root gathers for two seconds at most; a second more for the way.
CALL_S = 3.0
Send = Callable[[RootCall], Awaitable[None]]


@attrs.define(eq=False)
class RootCalls:
    """One per frontend process; `send` goes to the root, None where there is none."""

    send: Send | None = None
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _call_id: int = attrs.field(default=0, init=False)
    _reply: RootReply | None = attrs.field(default=None, init=False)
    _arrived: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def ask(self, call: ControlCall) -> str:
        """The root's answer, as JSON text. Raises `ApiError` 503 when there is none in time."""
        if self.send is not None:
            with trio.move_on_after(CALL_S):
                async with self._lock:
                    self._call_id += 1
                    self._arrived = trio.Event()
                    await self.send(RootCall(self._call_id, call))
                    await self._arrived.wait()
                    assert self._reply is not None
                    return self._reply.text
        raise ApiError(
            503,
            "The root of this server does not answer; ask again",
            "root_unreachable",
            SERVER_ERROR,
            retry_after_s=RETRY_AFTER_ENGINE_S,
        )

    def handle_reply(self, reply: RootReply) -> None:
        """The root's answer; a late one is dropped."""
        if reply.call_id == self._call_id:
            self._reply = reply
            self._arrived.set()
