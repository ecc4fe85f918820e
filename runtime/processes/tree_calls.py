"""Questions for the task tree of one child: each ends by an answer, its deadline, or the child."""

import attrs
import trio

from ...engine.messages import TreeReply, TreeRequest
from ...transports.control.channel import ControlChannel

# "Control reply 2 s" of the design: a process in a long native call cannot answer sooner.
TREE_TIMEOUT_S = 2.0


@attrs.define(eq=False)
class _Call:
    """One question; `tree` is its answer, when `over` is set and the child has not ended."""

    over: trio.Event = attrs.field(factory=trio.Event, init=False)
    tree: str | None = attrs.field(default=None, init=False)

    def end(self, tree: str | None) -> None:
        self.tree = tree
        self.over.set()


@attrs.define(eq=False)
class TreeCalls:
    """The questions that wait."""

    control: ControlChannel
    _calls: dict[int, _Call] = attrs.field(factory=dict, init=False)
    _next_call: int = attrs.field(default=1, init=False)

    async def ask(self) -> str:
        """The child's process tree as JSON text.

        Raises `trio.TooSlowError` after `TREE_TIMEOUT_S`, `trio.BrokenResourceError` if it ends.
        """
        call_id, call = self._next_call, _Call()
        self._next_call += 1
        self._calls[call_id] = call
        try:
            with trio.fail_after(TREE_TIMEOUT_S):
                await self.control.send(TreeRequest(call_id))
                await call.over.wait()
        finally:
            del self._calls[call_id]
        if call.tree is None:
            raise trio.BrokenResourceError("the process has ended")
        return call.tree

    def handle_reply(self, reply: TreeReply) -> None:
        """The answer to a question; one that comes late is of no use."""
        if reply.call_id in self._calls:
            self._calls[reply.call_id].end(reply.tree)

    def handle_ended(self) -> None:
        """The child says no more."""
        for call in self._calls.values():
            call.end(call.tree)
