"""Link of a simulated host: what passes there, and what the host has heard of frontends."""

import math
from collections.abc import Callable

import attrs
import trio

from ....engine.control_messages import FrontendMembership
from ....runtime.fleet.membership import FrontendDirectory


@attrs.define(eq=False)
class ListedFrontends(FrontendDirectory):
    """Frontends as the head lists them."""

    latest: FrontendMembership = attrs.field(factory=lambda: FrontendMembership(-1, []))

    def snapshot(self) -> FrontendMembership:
        return self.latest


@attrs.define(eq=False)
class SlowWay:
    """One direction of a host link: in order, so late; what is sent while it is cut is lost."""

    is_cut: Callable[[], bool]
    deliver: Callable[[object], None]
    delay_s: float
    _due: trio.MemorySendChannel[tuple[float, object]] = attrs.field(init=False)
    _taken: trio.MemoryReceiveChannel[tuple[float, object]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        # Its bound is what a host says in one delay: a few beats and snapshots.
        self._due, self._taken = trio.open_memory_channel(math.inf)

    def send(self, message: object) -> None:
        if not self.is_cut():
            self._due.send_nowait((trio.current_time() + self.delay_s, message))

    def close(self) -> None:
        self._due.close()

    async def run(self) -> None:
        async for at, message in self._taken:
            await trio.sleep_until(at)
            self.deliver(message)
