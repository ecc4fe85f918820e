"""Control channel of a running child, from its parent: orders, news, and questions."""

import contextlib
from collections.abc import Callable, Sequence

import attrs
import trio

from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...transports.codec import MalformedMessage
from ...transports.control.channel import ControlChannel
from .tree_calls import TreeCalls

# The root's limit for all that it sends. A control socket holds some hundred messages, so a child
# that takes none for so long hangs.
SEND_TIMEOUT_S = 2.0


@attrs.define(eq=False)
class ChildControl:
    """The channel to the child of this `name`; who has the child reads it."""

    name: str
    channel: ControlChannel
    trees: TreeCalls = attrs.field(
        default=attrs.Factory(lambda self: TreeCalls(self.channel), takes_self=True), init=False
    )
    # The newest snapshot of each kind that was not sent yet: the latest wins.
    _snapshots: dict[type, object] = attrs.field(factory=dict, init=False)
    _snapshot_set: Doorbell = attrs.field(factory=Doorbell, init=False)

    def publish(self, snapshot: object) -> None:
        """Have this full snapshot sent, in place of one of its kind that still waits."""
        self._snapshots[type(snapshot)] = snapshot
        self._snapshot_set.ring()

    async def send_snapshots(self) -> None:
        """Send what is published; a child that does not read delays no other."""
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                with waiting_for("news for it"):
                    await self._snapshot_set.wait()
                while self._snapshots:
                    snapshot = self._snapshots.pop(next(iter(self._snapshots)))
                    await self.channel.send_patiently(snapshot)

    async def send(self, order: object, timeout_s: float, fds: Sequence[int] = ()) -> None:
        """Send one order, with duplicates of `fds`.

        Raises `trio.BrokenResourceError` if the child is dead, `trio.TooSlowError` if it takes
        nothing for `timeout_s`, or we have no room for it: it got nothing of it.
        """
        with trio.fail_after(timeout_s):
            try:
                await self.channel.send_patiently(order, fds)
            except trio.ClosedResourceError as error:
                raise trio.BrokenResourceError(f"{self.name} has ended") from error

    async def send_if_possible(self, order: object, timeout_s: float) -> None:
        """Send an order that a dead or hanging child does not need either."""
        with contextlib.suppress(trio.BrokenResourceError, trio.TooSlowError):
            await self.send(order, timeout_s)

    async def read(self, handle: Callable[[object, Sequence[int]], None]) -> None:
        """Pass on the child's messages until it closes its end; then no question is answered."""
        try:
            while True:
                try:
                    with waiting_for("its messages"):
                        message, fds = await self.channel.receive()
                except MalformedMessage:
                    continue  # logged by the channel; a question has its deadline
                except (trio.EndOfChannel, trio.BrokenResourceError):
                    return  # its pidfd tells the rest
                handle(message, fds)
        finally:
            self.trees.handle_ended()
