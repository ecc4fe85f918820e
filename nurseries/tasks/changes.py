"""Event that is set and made anew: wakes every task that waits for the next change of something.

Tasks look at the state again when they wake; several changes may be one by then. One task that must
not miss a change of the time before its wait has a `Doorbell` (`parking`).
"""

import attrs
import trio


@attrs.define(eq=False)
class Changes:
    """The changes of something, for any number of waiting tasks.

    `next` is the event of the next change: a task that takes it before it looks misses none, also
    where it pauses between the look and the wait.
    """

    next: trio.Event = attrs.field(factory=trio.Event, init=False)

    def notify(self) -> None:
        """Wake all who wait now."""
        self.next.set()
        self.next = trio.Event()

    async def wait(self) -> None:
        """Wait for the next change; always sleeps. Cancellation is harmless."""
        await self.next.wait()
