"""Asks one worker for its live task tree, over the control channel that is used for nothing else.

Any number of tasks may ask, one question at a time is on its way. Must not know what is in a tree,
nor who asks.
"""

import attrs
import msgspec
import trio

from ...nurseries.tasks.task_tree import ProcessTree
from ...nurseries.tasks.waiting import waiting_for
from ...transports.control.channel import ControlChannel
from ...transports.control.passed_fds import close_fds
from ..messages import TreeReply, TreeRequest

# A worker in a long native call answers its control task all the same: the loop is free.
TREE_TIMEOUT_S = 1.5


@attrs.define(eq=False)
class TreeAsker:
    """The engine's side of one worker's control channel once that is ready. `who` is for people."""

    who: str
    control: ControlChannel
    # Only one task may receive.
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _asked: int = attrs.field(default=0, init=False)

    async def ask(self) -> ProcessTree | None:
        """Its tree; None if it does not tell within `TREE_TIMEOUT_S`, or has died.

        Cancellation: an answer that comes later is dropped by whoever asks next.
        """
        with trio.move_on_after(TREE_TIMEOUT_S), waiting_for(f"the task tree of {self.who}"):
            async with self._turn:
                try:
                    return await self._ask()
                except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
                    return None  # dead; the pool tells how
        return None

    async def _ask(self) -> ProcessTree:
        self._asked += 1
        await self.control.send(TreeRequest(self._asked))
        while True:
            reply, fds = await self.control.receive()
            close_fds(fds)
            assert isinstance(reply, TreeReply)
            if reply.call_id == self._asked:
                return msgspec.json.decode(reply.tree, type=ProcessTree)
