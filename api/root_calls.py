"""Calls of an admin's requests to the root, by the control channel of this frontend."""

from collections.abc import Awaitable, Callable

import attrs
import trio

from ..runtime.control.calls import ControlQuestion
from ..runtime.messages import RootCall, RootReply
from .errors import ApiError, no_answer

# The root gathers for two seconds at most; a second more for the way.
ROOT_CALL_S = 3.0
# Refusals of the root that another moment, or another pid, may change.
CONFLICTS = ("no_process", "process_changed", "no_host", "host_silent")


@attrs.define(eq=False)
class RootCalls:
    """Control calls of admins to the root, one at a time: those of commands, over HTTP.

    One per frontend process; `send` goes to the root, None where there is none.
    """

    send: Callable[[RootCall], Awaitable[None]] | None = None
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _call_id: int = attrs.field(default=0, init=False)
    _reply: RootReply | None = attrs.field(default=None, init=False)
    _arrived: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def ask(self, question: ControlQuestion) -> str:
        """The root's answer, as JSON text.

        Raises `ApiError` 503 when there is none in time; 404 when there is no such place, 409 when
        its process is not there, or another one.
        """
        if self.send is not None:
            with trio.move_on_after(ROOT_CALL_S):
                async with self._lock:
                    self._call_id += 1
                    self._arrived = trio.Event()
                    await self.send(RootCall(self._call_id, question))
                    await self._arrived.wait()
                    assert self._reply is not None
                    if self._reply.refusal:
                        status = 409 if self._reply.code in CONFLICTS else 404
                        raise ApiError(status, self._reply.refusal, self._reply.code)
                    return self._reply.text
        raise no_answer("The root of this server", "root_unreachable")

    def handle_reply(self, reply: RootReply) -> None:
        """The root's answer; a late one is dropped."""
        if reply.call_id == self._call_id:
            self._reply = reply
            self._arrived.set()
