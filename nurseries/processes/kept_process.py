"""Process that was started ahead of its use, kept until it is taken over.

Its keeper owns it like any other: its death is noticed, and leaving the block ends it. Taken over,
it goes on in the block of its new owner (`ProcessSpec.spawned`), who also reads what it has sent
meanwhile on its control socket.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

import attrs
import trio

from ..tasks.background import waiting_for
from ..tasks.service import single_errors_unwrapped
from .death_watch import waitable_copy
from .process import LadderTimes, Process, ProcessSpec, open_process
from .process_exit import ProcessDied
from .spawned import Spawned

T = TypeVar("T")
# The name of a process that has none yet.
AHEAD = "a process started ahead"


@attrs.define(eq=False)
class KeptProcess:
    """A process that is kept; made by `keep_process`. `warm` from its first message on."""

    process: Process
    # On the clock of trio: the spawn, then the first message.
    since_s: float = attrs.field(factory=trio.current_time, init=False)
    warm: bool = attrs.field(default=False, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def take(self) -> Spawned | None:
        """Take it over at once; None if it was taken, or is of no use and therefore ended.

        Of use is one that neither is dead or stopped nor has a child that is. Either way it is kept
        no longer. The caller must own what it gets before the loop goes on.
        """
        if self._scope.cancel_called:
            return None
        self._scope.cancel("it is taken over, or of no use")
        if not self.process.spec.kernel.is_usable(self.process.pid):
            return None
        return self.process.hand_over()

    async def wait_over(self, warm_up_s: float) -> None:
        """Return when it is taken, dead, or has said nothing for `warm_up_s` seconds.

        Then, and when cancelled, it cannot be taken any more: its keeper ends it.
        """
        name = self.process.spec.name
        with self._scope:
            try:
                with trio.move_on_after(warm_up_s) as patience, waiting_for(f"{name} to be warm"):
                    await _wait_spoken(self.process)
                if patience.cancelled_caught:
                    return
                self.warm, self.since_s = True, trio.current_time()
                with waiting_for(f"a use for {name}"):
                    await self.process.wait_gone()
            finally:
                self._scope.cancel("it is kept no longer")


async def keep_process(
    spec: ProcessSpec,
    *,
    warm_up_s: float,
    ladder: LadderTimes,
    on_kept: Callable[[KeptProcess], None],
) -> None:
    """Start a process and keep it until it is taken over, is dead, or cannot be used.

    `on_kept` is called at once; `warm_up_s` is how long it may be silent. Raises `OSError` and
    `ProcessStuck` as `open_process` does; no death raises. Cancellation: it is stopped and reaped.
    """
    async with open_process(spec, ladder=ladder) as process:
        kept = KeptProcess(process)
        on_kept(kept)
        await kept.wait_over(warm_up_s)


async def keep_while(
    spawned: Sequence[Spawned], wait: Callable[[], Awaitable[T]]
) -> tuple[T, list[Spawned]]:
    """Own processes that were started ahead while `wait()` lasts; returns its value, and them.

    Raises `ProcessDied` of one that died meanwhile, and what `wait` raises. Then, and when
    cancelled, all of them are brought to their end. The caller must own what it gets before the
    loop goes on.
    """
    async with AsyncExitStack() as blocks:
        processes = [
            await blocks.enter_async_context(open_process(ProcessSpec(AHEAD, "", spawned=each)))
            for each in spawned
        ]
        with single_errors_unwrapped():
            async with trio.open_nursery() as nursery:
                for process in processes:
                    nursery.start_soon(_fail_at_death, process)
                value = await wait()
                nursery.cancel_scope.cancel("the wait is over")
        return value, [process.hand_over() for process in processes]


async def _fail_at_death(process: Process) -> None:
    raise ProcessDied(await process.wait_exited())


async def _wait_spoken(process: Process) -> None:
    """Wait until there is something to read, or the end of the stream."""
    # A copy: the socket goes with the process when it is taken over.
    with waitable_copy(process.control.fileno()) as own_fd:
        await trio.lowlevel.wait_readable(own_fd)
