"""Simulated kernel: processes that are tasks of this loop, with pids, pidfds, signals and exits.

A process is whatever runs below one cancel scope. SIGKILL cuts it off from the network and its
parent first, so that nothing it does while its scopes unwind is seen by anybody; its exit is
published a moment later, as a real process takes time to give its memory back. Descriptors are
real: a pidfd is an eventfd, the control and death sockets are socketpairs.
"""

import os
import signal
import socket
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from pathlib import Path
from random import Random

import attrs
import trio

from ...nurseries.processes.boot import EXIT_FAILED
from ...nurseries.processes.hang_watch import ProcessLook, ProcessState
from ...nurseries.processes.kernel import Kernel
from ...nurseries.processes.last_words import LastWords, write_last_words
from ...nurseries.processes.process_exit import EXIT_CHILD_KILLED, ProcessDied
from ...nurseries.processes.spawned import Spawned
from ...nurseries.tasks.service import first_error
from .stores import Stores
from .task_order import PROCESS, let_go_on

# Beyond any number that Linux gives, so that a call past the simulation hits nobody.
FIRST_PID = 2**23
# From a kill to the readable pidfd, as of small and large processes.
TEARDOWN_S = (0.0, 0.001, 0.05, 0.4)
# One that hangs in the kernel does so beyond `DYING_S` and then `LadderTimes.kill_s`.
LINGERS_S = 25.0
# A stop is noticed within half of this, and is none before the other.
NOTICED_S = 1.5
STOPPED_S = 0.4
Main = Callable[["SimProcess"], Awaitable[None]]


@attrs.define(eq=False)
class SimProcess:
    """One process. Its tasks have it in their context (`task_order.PROCESS`)."""

    pid: int
    module: str
    pidfd: int  # a copy of what its owner got, until its exit
    control: socket.socket
    death: socket.socket
    words_fd: int
    # From INIT on: "engine" and 0, say.
    role: str = attrs.field(default="", init=False)
    rank: int = attrs.field(default=-1, init=False)
    epoch: int = attrs.field(default=0, init=False)
    # What its main made, for observers.
    parts: object = attrs.field(default=None, init=False)
    is_alive: bool = attrs.field(default=True, init=False)
    is_stopped: bool = attrs.field(default=False, init=False)
    was_stopped: bool = attrs.field(default=False, init=False)
    # When it was stopped last, and since when it is watched: it is READY.
    stopped_at: float = attrs.field(default=float("inf"), init=False)
    watched_at: float = attrs.field(default=float("inf"), init=False)
    # When its owner sent SIGTERM: it is killed if that does not help, watched or not.
    terminated_at: float = attrs.field(default=float("inf"), init=False)
    died_at: float = attrs.field(default=float("inf"), init=False)
    # Whether it outlives SIGKILL, as one that hangs in the kernel does.
    lingers: bool = attrs.field(default=False, init=False)
    # (code, signal) from the exit on.
    exit: tuple[int | None, int | None] | None = attrs.field(default=None, init=False)
    steps: int = attrs.field(default=0, init=False)
    due_at: float = attrs.field(default=float("inf"), init=False)
    due: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    held: list[trio.lowlevel.Task] = attrs.field(factory=list, init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    context: Context = attrs.field(factory=copy_context, init=False)
    stores: Stores = attrs.field(factory=Stores, init=False)
    # Closed when its tasks have ended.
    fds: list[int] = attrs.field(factory=list, init=False)
    # Duplicates of its links, closed when it is cut off or the simulation is over.
    links: list[socket.socket] = attrs.field(factory=list, init=False)
    # Called once when it is cut off from the network: dead by whatever cause.
    on_cut: list[Callable[[], None]] = attrs.field(factory=list, init=False)

    def __str__(self) -> str:
        return f"{self.role or self.module} {self.rank} (pid {self.pid}, epoch {self.epoch})"

    def has_stopped_for(self, seconds: float) -> bool:
        """Whether it is stopped, for so long."""
        return self.is_stopped and trio.current_time() - self.stopped_at >= seconds

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a task as one of this process; it ends with it."""
        assert self.nursery is not None
        self.context.run(self.nursery.start_soon, async_fn, *args)


@attrs.define(eq=False)
class SimKernel(Kernel):
    """All processes of one simulation. `mains` are what each module does."""

    mains: Mapping[str, Main]
    chance: Random
    note: Callable[[str], None]
    nursery: trio.Nursery | None = None
    # Such a share of the killed hang in the kernel for a while.
    hanging: float = 0.0
    # So many spawns fail from now on.
    refusals: int = 0
    processes: list[SimProcess] = attrs.field(factory=list, init=False)
    # Errors that ended a process and that no fault explains.
    # Killed by their owner although they would have ended by themselves.
    false_kills: list[str] = attrs.field(factory=list, init=False)
    unexplained: list[BaseException] = attrs.field(factory=list, init=False)
    # Types that may end a process.
    explained: tuple[type[BaseException], ...] = ()
    # Stopped for so long that their owner ought to have ended them.
    unnoticed: list[str] = attrs.field(factory=list, init=False)
    # By what the kernel calls the event behind a pidfd, whatever copy of it is asked about.
    _by_event: dict[str, SimProcess] = attrs.field(factory=dict, init=False)

    # ---- as the owners of processes call it

    has_forks = False

    def spawn(
        self,
        module: str,
        *,
        ahead: Sequence[str],
        environment: Mapping[str, str],
        forks: bool = False,
    ) -> Spawned:
        """See `Kernel`. What would start ahead does not."""
        assert not forks
        assert self.nursery is not None
        if self.refusals:
            self.refusals -= 1
            raise OSError("simulated: no process can be started")
        control, child_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        death, child_death = socket.socketpair()
        for each in (control, child_control, child_death):
            each.setblocking(False)
        words = LastWords.create()
        pidfd = os.eventfd(0)
        pid = FIRST_PID + len(self.processes)
        process = SimProcess(
            pid, module, os.dup(pidfd), child_control, child_death, os.dup(words.fd)
        )
        process.context.run(PROCESS.set, process)
        self.processes.append(process)
        self._by_event[event_of(pidfd)] = process
        self.note(f"spawn {pid} {module}")
        process.context.run(self.nursery.start_soon, self._run, process)
        return Spawned(pid, pidfd, control.detach(), death.detach(), words.fd)

    def send_signal(self, pidfd: int, number: signal.Signals) -> None:
        """See `Kernel`. SIGTERM alone does nothing: an order comes by the death pipe."""
        process = self._by_event[event_of(pidfd)]
        if number == signal.SIGKILL:
            self._kill_by_owner(process)
        elif number == signal.SIGTERM:
            process.terminated_at = trio.current_time()

    def kill_group(self, pid: int) -> None:
        """See `Kernel`."""
        self._kill_by_owner(self.processes[pid - FIRST_PID])

    def reap(self, pidfd: int) -> tuple[int | None, int | None]:
        """See `Kernel`."""
        found = self._by_event[event_of(pidfd)].exit
        assert found is not None, "only a dead process can be reaped"
        return found

    def count_oom_kills(self) -> int:
        """See `Kernel`. None is killed for want of memory here."""
        return 0

    def is_exiting(self, pid: int) -> bool:
        """See `Kernel`."""
        return not self.processes[pid - FIRST_PID].is_alive

    def is_usable(self, pid: int) -> bool:
        """See `Kernel`."""
        process = self.processes[pid - FIRST_PID]
        return process.is_alive and not process.is_stopped

    def look(self, pid: int, *, every_thread: bool) -> ProcessLook:
        """See `Kernel`. Nobody here computes."""
        process = self.processes[pid - FIRST_PID]
        if not process.is_alive:
            return ProcessLook(ProcessState.GONE)
        state = ProcessState.STOPPED if process.is_stopped else ProcessState.ASLEEP
        return ProcessLook(state, runs=process.steps)

    def _kill_by_owner(self, process: SimProcess) -> None:
        if process.is_alive and not process.was_stopped:
            self.false_kills.append(str(process))
        self.kill(process)

    # ---- faults

    def kill(self, process: SimProcess, number: signal.Signals = signal.SIGKILL) -> None:
        """Death by a signal, at once, wherever its tasks are; harmless when it is dead."""
        if not process.is_alive:
            return
        self.note(f"kill {process.pid} {process.steps}")
        self._cut(process)
        process.scope.cancel("killed")
        assert self.nursery is not None
        self.nursery.start_soon(self._exit_later, process, number)

    def lingering(self) -> set[tuple[str, int]]:
        """Role and rank of each process that outlives SIGKILL now."""
        return {(p.role, p.rank) for p in self.processes if p.lingers and p.exit is None}

    def lingers_s(self) -> float:
        """So many seconds more a process may outlive SIGKILL that does so now."""
        return LINGERS_S if self.lingering() else 0.0

    def stop(self, process: SimProcess) -> None:
        """SIGSTOP."""
        if process.is_alive and not process.is_stopped:
            self.note(f"stop {process.pid} {process.steps}")
            process.is_stopped = process.was_stopped = True
            process.stopped_at = trio.current_time()

    def resume(self, process: SimProcess) -> None:
        """SIGCONT."""
        if process.is_stopped:
            self.note(f"cont {process.pid}")
            watched_until = min(trio.current_time(), process.terminated_at)
            stopped_s = watched_until - max(process.stopped_at, process.watched_at)
            if stopped_s > NOTICED_S:
                self.unnoticed.append(f"{process}, for {stopped_s:.1f} s")
            process.is_stopped = False
            let_go_on(process)

    def leave(self, process: SimProcess, code: int) -> None:
        """Let the process exit with this code, from within."""
        self._cut(process)
        process.scope.cancel("it exits")
        self._publish(process, (code, None))

    def close(self) -> None:
        """Close what is open when a simulation is over before its processes are dead."""
        for process in self.processes:
            for each in (process.control, process.death, *process.links):
                each.close()
            if process.exit is None:
                os.close(process.pidfd)

    # ---- inside

    def _cut(self, process: SimProcess) -> None:
        process.is_alive, process.died_at = False, trio.current_time()
        process.due_at = float("inf")
        process.stores.end()
        for cut in process.on_cut:
            cut()
        for sock in (process.control, process.death):
            if sock.fileno() >= 0:
                with suppress(OSError):  # the parent has closed its end
                    sock.shutdown(socket.SHUT_RDWR)
        if process.is_stopped:
            process.is_stopped = False
            let_go_on(process)

    async def _exit_later(self, process: SimProcess, number: signal.Signals) -> None:
        teardown_s = self.chance.choice(TEARDOWN_S)
        if self.hanging and number == signal.SIGKILL and self.chance.random() < self.hanging:
            self.note(f"lingers {process.pid}")
            process.lingers, teardown_s = True, LINGERS_S
        await trio.sleep(teardown_s)
        self._publish(process, (None, int(number)))

    def _publish(self, process: SimProcess, how: tuple[int | None, int | None]) -> None:
        process.exit = how
        self.note(f"exit {process.pid} {how}")
        os.eventfd_write(process.pidfd, 1)
        os.close(process.pidfd)

    async def _run(self, process: SimProcess) -> None:
        """What `child.run_child` does with a real process."""
        try:
            await self._run_to_exit(process)
        finally:
            for sock in (process.control, process.death):
                if sock.fileno() >= 0:
                    trio.lowlevel.notify_closing(sock)
                    sock.close()
            for fd in (process.words_fd, *process.fds):
                os.close(fd)

    async def _run_to_exit(self, process: SimProcess) -> None:
        code = EXIT_FAILED
        try:
            with process.scope:
                code = await self._run_until_stopped(process)
        except Exception as error:  # what a process died of is its owner's to judge
            if process.is_alive:
                self._judge(error)
                first = first_error(error)
                write_last_words(process.words_fd, f"{first!r}")
                if isinstance(first, ProcessDied) and first.exit.was_killed:
                    code = EXIT_CHILD_KILLED
        if process.is_alive:
            self._cut(process)
            self._publish(process, (code, None))

    def _judge(self, error: BaseException) -> None:
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                self._judge(each)
        elif not isinstance(error, self.explained):
            self.note(f"error {error!r}")
            error.add_note("".join(traceback.format_exception(error)))
            self.unexplained.append(error)

    async def _run_until_stopped(self, process: SimProcess) -> int:
        ordered = False
        async with trio.open_nursery() as nursery:
            process.nursery = nursery
            main_scope = trio.CancelScope()

            async def watch_death_pipe() -> None:
                nonlocal ordered
                while True:
                    await trio.lowlevel.wait_readable(process.death)
                    try:
                        if process.death.recv(1) == b"":
                            break
                    except BlockingIOError:
                        continue
                ordered = True
                main_scope.cancel("the parent asked this process to stop")

            nursery.start_soon(watch_death_pipe)
            with main_scope:
                await self.mains[process.module](process)
            nursery.cancel_scope.cancel("the main function has ended")
        return 0 if ordered else EXIT_FAILED


def event_of(pidfd: int) -> str:
    """What the kernel calls the event behind a simulated pidfd, or a copy of it."""
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next(line for line in lines if line.startswith("eventfd-id"))
