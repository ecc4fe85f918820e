"""Questions for the task tree of one child: each ends by an answer, its deadline, or the child."""

import attrs
import trio

from ...engine.control_messages import TreeReply, TreeRequest
from ...transports.control.channel import ControlChannel

# "Control reply 2 s" of the design: a process in a long native call cannot answer sooner.
TREE_TIMEOUT_S = 2.0


@attrs.define(eq=False)
class _Question:
    """Question; `tree` is its answer, when `over` is set and the child has not ended."""

    over: trio.Event = attrs.field(factory=trio.Event, init=False)
    tree: str | None = attrs.field(default=None, init=False)


@attrs.define(eq=False)
class TreeCalls:
    """The questions that wait."""

    control: ControlChannel
    _questions: dict[int, _Question] = attrs.field(factory=dict, init=False)
    _next_id: int = attrs.field(default=1, init=False)

    async def ask(self) -> str:
        """The child's process tree as JSON text.

        Raises `trio.TooSlowError` after `TREE_TIMEOUT_S`, `trio.BrokenResourceError` if it ends.
        """
        number, question = self._next_id, _Question()
        self._next_id += 1
        self._questions[number] = question
        try:
            with trio.fail_after(TREE_TIMEOUT_S):
                await self.control.send_patiently(TreeRequest(number))
                await question.over.wait()
        finally:
            del self._questions[number]
        if question.tree is None:
            raise trio.BrokenResourceError("the process has ended")
        return question.tree

    def handle_reply(self, reply: TreeReply) -> None:
        """The answer to a question; one that comes late is of no use."""
        if (question := self._questions.get(reply.call_id)) is not None:
            question.tree = reply.tree
            question.over.set()

    def handle_ended(self) -> None:
        """The child says no more."""
        for question in self._questions.values():
            question.over.set()
