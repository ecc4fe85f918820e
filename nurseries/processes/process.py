"""Child process, owned by the block that opened it: spawn, ready, wait, shut down, reap.

Leaving the block means that the process, and all of its process group, is gone and reaped. Spawning
is a plain `Popen` in the thread that runs the loop, because the child's death notice is bound to
the *thread* which forked it: a helper thread that idles out would take the child with it. All
signals and the exit go through a pidfd, so that no stranger with a reused pid is ever hit.
"""

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from ..tasks.background import waiting_for
from ..tasks.service import single_errors_unwrapped
from .death_watch import wait_process_gone
from .kernel import KERNEL, Kernel
from .last_words import LastWords
from .process_exit import ProcessDied, ProcessExit, ProcessStuck
from .spawned import Spawned

T = TypeVar("T")
# The kernel counts a kill for want of memory before the death is seen, by what it takes to give the
# memory back: less than this.
OOM_LOOK_S = 15.0


def _rung(default: float, option: str, help: str) -> Any:
    note = {"option": f"ladder.{option}", "help": help, "rare": True}
    return attrs.field(default=default, validator=attrs.validators.ge(0), metadata=note)


@attrs.frozen
class LadderTimes:
    """Seconds to wait on each step before the next one; their sum bounds every shutdown."""

    ask_s: float = _rung(0.5, "ask-s", "Seconds for a process to end when asked, before SIGTERM.")
    terminate_s: float = _rung(1.0, "terminate-s", "Seconds after SIGTERM, before SIGKILL.")
    # A killed process gives its memory back before it is gone: seconds for a hundred GiB, or on a
    # machine that is short of processors.
    kill_s: float = _rung(10.0, "kill-s", "Seconds from SIGKILL until a process counts as stuck.")


@attrs.frozen
class ProcessSpec:
    """Specification of a child: `name` is for people and the tree, `module` is run as by `python
    -m`.

    `rank` is the place in a pool. `environment` is added to what of ours any child inherits
    (`spawned.inherited`). The child's module search path never has the current folder.

    `ahead` are modules that the child will want as children of its own: they start with it, before
    its imports. `spawned` is such a one, there already: it is taken over instead of a spawn. With
    `forks` it is no child as others are, but a fork server of the module.
    """

    name: str
    module: str
    rank: int = attrs.field(default=0, kw_only=True)
    environment: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    ahead: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    spawned: Spawned | None = attrs.field(default=None, kw_only=True)
    forks: bool = attrs.field(default=False, kw_only=True)
    kernel: Kernel = attrs.field(default=KERNEL, kw_only=True)


@attrs.define(eq=False)
class Process:
    """A living (or just dead) child process. Made by `open_process` alone.

    `control` is our end of a SOCK_SEQPACKET socketpair, non-blocking; `pidfd` is readable from the
    death on. Both are closed when the block of `open_process` is left. `exit` is None until the
    death was seen by `wait_exited`.
    """

    spec: ProcessSpec
    pid: int
    pidfd: int
    control: socket.socket
    exit: ProcessExit | None = attrs.field(default=None, init=False)

    _words: LastWords
    # Our end of the death pipe; -1 from `ask_to_stop` on.
    _death_fd: int
    # Another block owns the process, its descriptors and its end.
    _handed_over: bool = attrs.field(default=False, init=False)
    # Still there after the whole ladder of signals: not waited for again.
    _stuck: bool = attrs.field(default=False, init=False)
    # Counts of the cgroup at the last two looks at the living process; first when we became its
    # owner.
    _oom_kills: tuple[int, int] = attrs.field(init=False)
    _looked_s: float = attrs.field(factory=trio.current_time, init=False)

    def __attrs_post_init__(self) -> None:
        self._oom_kills = (self.spec.kernel.count_oom_kills(),) * 2

    async def wait_exited(self) -> ProcessExit:
        """Return how the process ended, once it has. Any number of tasks may wait.

        The process is reaped and what is left of its process group killed. Cancellation is
        harmless.
        """
        if self.exit is None:
            with waiting_for(f"{self.spec.name} (pid {self.pid}) to exit"):
                await self.wait_gone()
        return self._reap()

    async def wait_gone(self) -> None:
        """Wait for the end without reaping the process; see `wait_exited`."""
        while True:
            with trio.move_on_at(self._looked_s + OOM_LOOK_S):
                return await wait_process_gone(self.pidfd)
            if trio.current_time() >= self._looked_s + OOM_LOOK_S:  # no other task has looked
                self._looked_s = trio.current_time()
                self._oom_kills = self._oom_kills[1], self.spec.kernel.count_oom_kills()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to this very process; nothing happens if it is gone."""
        if self.exit is not None:
            return
        try:
            self.spec.kernel.send_signal(self.pidfd, number)
        except ProcessLookupError:
            pass  # it was reaped elsewhere before

    def ask_to_stop(self) -> None:
        """End the death pipe, the order to stop. Returns at once; harmless when repeated."""
        if self._death_fd >= 0:
            # An error means that the child is dead.
            with socket.socket(fileno=self._death_fd) as death, suppress(OSError):
                death.shutdown(socket.SHUT_RDWR)
            self._death_fd = -1

    @property
    def asked_to_stop(self) -> bool:
        """Whether an exit with code 0 is what was wanted."""
        return self._death_fd < 0

    def hand_over(self) -> Spawned:
        """Let go of a living process: its owner is the block that gets it as `ProcessSpec.spawned`.

        This object is of no use from now on, and its block has nothing left to end. No task may
        wait with it for the exit, or use its control socket, when the loop goes on.
        """
        assert self.exit is None, "a dead process cannot be handed over"
        assert not self.asked_to_stop
        self._handed_over = True
        control_fd = self.control.detach()
        return Spawned(self.pid, self.pidfd, control_fd, self._death_fd, self._words.fd)

    def kill_group(self) -> None:
        """Send SIGKILL to the process and all that it has started in its process group."""
        if self.exit is not None:
            return
        self.send_signal(signal.SIGKILL)  # it may have left its group
        try:
            # Not yet reaped, so the number of the group cannot have been taken over.
            self.spec.kernel.kill_group(self.pid)
        except ProcessLookupError:
            pass  # it was reaped elsewhere before

    def _reap(self) -> ProcessExit:
        if self.exit is None:
            self.kill_group()
            code, number = self.spec.kernel.reap(self.pidfd)
            words = self._words.read()
            is_killed = number == signal.SIGKILL
            starved = is_killed and self.spec.kernel.count_oom_kills() > self._oom_kills[0]
            self.exit = ProcessExit(self.spec.name, self.pid, code, number, words, starved)
        return self.exit

    def _close(self) -> None:
        self.ask_to_stop()
        self._words.close()
        if self.control.fileno() >= 0:
            trio.lowlevel.notify_closing(self.control)
            self.control.close()
        os.close(self.pidfd)


@asynccontextmanager
async def open_process(
    spec: ProcessSpec, *, ladder: LadderTimes | None = None
) -> AsyncIterator[Process]:
    """Start a process; when the block is left, for whatever cause, bring it to its end.

    One that was handed over in the block goes on (`Process.hand_over`).

    *Raises* `OSError` if it cannot be started, `ProcessStuck` if it cannot be ended. A death inside
    the block raises nothing by itself: wait with `wait_exited`, or use `run_process`.

    *Resource handling*: file descriptors, the process and its process group are gone afterwards.

    *Cancellation*: leaving is shielded and takes at most the sum of the ladder's times.
    """
    process = _spawn(spec)
    try:
        yield process
    finally:
        if not process._handed_over:
            try:
                await shut_down_process(process, ladder or LadderTimes())
            finally:
                process._close()


async def run_process(
    spec: ProcessSpec,
    *,
    ready: Callable[[Process], Awaitable[T]],
    ladder: LadderTimes | None = None,
    task_status: trio.TaskStatus[tuple[Process, T]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Own a process until it dies: start it, await `ready(process)`, then wait for its end.

    Starts with `(process, value of ready)`. Returns only if the process was asked to stop by
    `ask_to_stop` and exited with code 0.

    *Raises* `ProcessDied` for any other end, before `ready` too, and what `ready` raises itself.

    *Cancellation*: the process gets the ladder, as in `open_process`.
    """
    async with open_process(spec, ladder=ladder) as process:
        value = await _ready_or_dead(process, ready)
        task_status.started((process, value))
        how = await process.wait_exited()
        if not (process.asked_to_stop and how.code == 0):
            raise ProcessDied(how)


async def _ready_or_dead(process: Process, ready: Callable[[Process], Awaitable[T]]) -> T:
    async def watch(scope: trio.CancelScope) -> None:
        await process.wait_exited()
        scope.cancel(f"{process.spec.name} died before it was ready")

    try:
        with single_errors_unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, nursery.cancel_scope)
                with waiting_for(f"{process.spec.name} (pid {process.pid}) to be ready"):
                    value = await ready(process)
                nursery.cancel_scope.cancel("ready")
                return value
    except Exception as error:
        # Mostly the end of the control socket, which a death closes before the pidfd is readable.
        if process.exit is not None or process.spec.kernel.is_exiting(process.pid):
            raise ProcessDied(await process.wait_exited()) from error
        raise
    raise ProcessDied(await process.wait_exited())


def _spawn(spec: ProcessSpec) -> Process:
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError("a process must be spawned from the thread that runs the loop")
    spawned = spec.spawned or spec.kernel.spawn(
        spec.module, ahead=spec.ahead, environment=spec.environment, forks=spec.forks
    )
    control = socket.socket(fileno=spawned.control_fd)
    control.setblocking(False)
    words = LastWords(spawned.words_fd)
    return Process(spec, spawned.pid, spawned.pidfd, control, words, spawned.death_fd)


async def shut_down_process(process: Process, times: LadderTimes) -> None:
    """Bring a process to its end, rung by rung; `open_process` does so when its block is left.

    Asking means ending the death pipe: a child in good order then cancels its work and exits with
    code 0; one that still imports its modules does so on SIGTERM. A process in uninterruptible
    sleep outlives even SIGKILL, so the last wait is bounded, too.

    Raises `ProcessStuck` after the last rung, and at once when called again. Shielded from
    cancellation, bounded by `times`.
    """
    rungs = (
        (process.ask_to_stop, times.ask_s),
        (partial(process.send_signal, signal.SIGTERM), times.terminate_s),
        (process.kill_group, times.kill_s),
    )
    with trio.CancelScope(shield=True):  # bounded by the times
        for take, wait_s in rungs:
            if process.exit is None and not process._stuck:
                take()
                with trio.move_on_after(wait_s):
                    await process.wait_exited()
    if process.exit is None:
        process._stuck = True
        raise ProcessStuck(process.spec.name, process.pid, times.kill_s)
