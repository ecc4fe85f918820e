"""Forked calls: a function in copies of this process, with bounds, whose crash is an answer.

For work that may crash a library, never end, or fill memory: a copy computes a result or dies, and
its owner learns which; it dies with its owner (`PR_SET_PDEATHSIG`). A copy's fork, bounds, first
touch of each page and end cost some eight milliseconds. So one is forked ahead, has made a call for
practice, and waits; and one that has found something good, soon, waits for another call.

What a call leaves behind must not harm the next one. So of a copy that has been used only what is
good counts: where it dies, takes long or finds anything else, a new copy is asked the same.

Only a process of one thread may call this: another thread's locks would be held for ever in the
copy. So it must not use `trio.to_thread`.
"""

import os
import resource
import signal
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import attrs
import trio

from ..tasks.background import waiting_for
from .boot import request_death_signal, stand_before_parent
from .death_watch import wait_process_gone

# A result and its length fit a socket's buffer, so that the copy never waits for its owner.
RESULT_BYTES_MAX = 65_536
# Calls in use take a few milliseconds; one that takes longer goes behind those who serve. Were it
# so from the beginning, every call would wait wherever the machine has other work.
NICE_AFTER_S = 0.02
# A copy that someone has stopped is found after at most so long.
STOPPED_LOOK_S = 0.5
# A killed copy gives back at most some hundred MiB.
REAP_S = 10.0
_PAGE_BYTES = resource.getpagesize()
_PIECE_BYTES = 65_536
# Seven numbers.
_STATM_BYTES = 256
# The length of the argument or result that follows.
_LENGTH = struct.Struct("=I")
# Calls of one copy, pulled out of the air: what they leave behind adds up to little.
CALLS_MAX = 100
# Processor time of a call by a copy that has been used: a hundred times what most take.
USED_CPU_S = 0.2
_STDERR_FD = 2
_LOOK = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
_FAILED = 1
# The kernel takes a copy before anybody who serves.
_OOM_SCORE_MORE = 300


@attrs.frozen(kw_only=True)
class CallLimits:
    """Bounds of one call; the kernel enforces them.

    Beyond `cpu_s` seconds of processor time the copy gets SIGXCPU; `memory_bytes` is what it may
    map beside what the owner has, `stack_bytes` how deep it may recurse. `niceness` is added to the
    owner's when a call has taken `NICE_AFTER_S`.
    """

    cpu_s: int
    memory_bytes: int
    stack_bytes: int
    niceness: int = 0


@attrs.frozen
class ForkedCallDied(Exception):
    """The copy ended without a result; `is_own_fault` unless it was killed or stopped from outside.

    `cause` is the predicate of a sentence about the copy. `is_spent`: it has had `cpu_s`, and would
    need as much again.
    """

    cause: str
    is_own_fault: bool
    is_spent: bool = False

    def __str__(self) -> str:
        return f"the call's process {self.cause}"


@attrs.define(eq=False)
class _Copy:
    """A forked copy, from its fork until it is reaped, and our end of its socket."""

    pid: int
    pidfd: int
    ours: trio.socket.SocketType
    # Calls that it has answered.
    calls: int = 0
    # The copy's priority is behind that of serving processes, for good.
    is_nice: bool = False


@attrs.define(eq=False)
class ForkedCalls:
    """Calls of `function`, each in a copy of this process; `aclose` must be called.

    What the function prints to stderr is dropped. A copy that is forked ahead computes the result
    of `practice` first, so that what every call touches is its own by then. One whose results all
    are `is_good` may answer up to `CALLS_MAX` calls.
    """

    function: Callable[[bytes], bytes]
    limits: CallLimits
    practice: bytes | None = None
    is_good: Callable[[bytes], bool] = lambda result: False
    # The copy that waits for the next call.
    _ahead: _Copy | None = attrs.field(default=None, init=False)

    @asynccontextmanager
    async def open_call(self, argument: bytes) -> AsyncIterator[bytes]:
        """The result of the function, at most `RESULT_BYTES_MAX` bytes, from a copy of us.

        The end of a copy that is not used again is awaited at the block's end. Raises
        `ForkedCallDied`; `OSError` if there is no memory or descriptor for a copy. Cancellation:
        the copy is killed and reaped.
        """
        async with AsyncExitStack() as ends:
            result = await self._ask_used(argument)
            if result is None:
                copy = self._take_new()
                ends.push_async_callback(_end, copy)
                result = await _ask(copy, argument, self.limits.niceness)
                if self._keep(copy, result):
                    ends.pop_all()
            yield result

    def prepare(self) -> None:
        """Fork the copy of the next call ahead, unless one waits or there is no room for it."""
        if self._ahead is None:
            with suppress(OSError):
                self._ahead = self._fork(self.practice)

    @property
    def waiting_pid(self) -> int | None:
        """The process that waits for the next call, if one does."""
        return None if self._ahead is None else self._ahead.pid

    async def aclose(self) -> None:
        """End the copy that waits, if one does."""
        if self._ahead is not None:
            copy, self._ahead = self._ahead, None
            await _end(copy)

    async def _ask_used(self, argument: bytes) -> bytes | None:
        """Ask the copy that waits; None if it is new, or its result does not count."""
        if self._ahead is None or not self._ahead.calls:
            return None
        copy, self._ahead = self._ahead, None
        result, is_kept = None, False
        try:
            with suppress(ForkedCallDied):
                result = await _ask(copy, argument, self.limits.niceness)
                is_kept = self._keep(copy, result)
        finally:
            if not is_kept:
                await _end(copy)
        return result if result is not None and self.is_good(result) else None

    def _keep(self, copy: _Copy, result: bytes) -> bool:
        """Have a copy that has found this wait for the next call, if it may."""
        copy.calls += 1
        may_go_on = self.is_good(result) and not copy.is_nice and copy.calls < CALLS_MAX
        if self._ahead is None and may_go_on:
            self._ahead = copy
        return self._ahead is copy

    def _take_new(self) -> _Copy:
        copy = self._ahead
        if copy is None or copy.calls:
            return self._fork()
        self._ahead = None
        if _has_ended(copy.pidfd):  # somebody has killed it
            _let_go(copy)
            return self._fork()
        return copy

    def _fork(self, practice: bytes | None = None) -> _Copy:
        assert len(os.listdir("/proc/self/task")) == 1, "a process with several threads cannot fork"
        ours, theirs = socket.socketpair()
        pid = 0
        with theirs:
            try:
                pid = os.fork()
                if pid == 0:
                    self._run_copy(theirs, practice)
                pidfd = os.pidfd_open(pid)
                return _Copy(pid, pidfd, trio.socket.from_stdlib_socket(ours))
            except BaseException:
                ours.close()
                if pid:
                    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
                    os.waitpid(pid, 0)
                raise

    def _run_copy(self, theirs: socket.socket, practice: bytes | None) -> None:
        """Read arguments, compute, hand over results; never returns."""
        try:
            request_death_signal()
            stand_before_parent(_OOM_SCORE_MORE)
            _keep_alone(theirs.fileno())
            _bound(self.limits)
            if practice is not None:
                self.function(practice)
            while (argument := _read(theirs)) is not None:
                result = self.function(argument)
                if len(result) > RESULT_BYTES_MAX:
                    break
                theirs.sendall(_LENGTH.pack(len(result)) + result)
                signal.setitimer(signal.ITIMER_PROF, USED_CPU_S)  # begins anew after each call
        finally:
            os._exit(_FAILED)


def _read(theirs: socket.socket) -> bytes | None:
    """The next argument, in the copy; None if there is none."""
    head = theirs.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return None
    return theirs.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL)


async def _ask(copy: _Copy, argument: bytes, niceness: int) -> bytes:
    """Ask a copy for its result. Raises `ForkedCallDied`."""
    received, was_stopped = await _converse(copy, argument, niceness)
    if not _is_whole(received):
        _kill(copy)  # it ends already, or says more than a result
        await wait_process_gone(copy.pidfd)
        raise _death(copy.pidfd, was_stopped=was_stopped)
    return received[_LENGTH.size :]


async def _converse(copy: _Copy, argument: bytes, niceness: int) -> tuple[bytes, bool]:
    """Send the argument, read until the end; returns the bytes and whether a stopped copy was
    killed."""
    look_s = NICE_AFTER_S
    unsent, received, was_stopped = (
        memoryview(_LENGTH.pack(len(argument)) + argument),
        bytearray(),
        False,
    )
    with waiting_for("a forked call"), suppress(ConnectionError):  # it has died before it read all
        while True:
            with trio.move_on_after(look_s):
                while unsent:
                    unsent = unsent[await copy.ours.send(unsent) :]
                await _receive(copy, received)
                break
            if not copy.is_nice:
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, copy.pid, own + niceness)  # it is not reaped yet
                look_s, copy.is_nice = STOPPED_LOOK_S, True
            elif _is_stopped(copy.pidfd):
                was_stopped = True
                _kill(copy)
    return bytes(received), was_stopped


async def _receive(copy: _Copy, received: bytearray) -> None:
    """Read on until a result is whole, is too long for one, or the copy has died."""
    while not _is_whole(received) and len(received) <= RESULT_BYTES_MAX:
        if not (piece := await copy.ours.recv(_PIECE_BYTES)):
            return
        received += piece


def _is_whole(received: bytes | bytearray) -> bool:
    """Whether this is all of a result."""
    size = _LENGTH.size
    return len(received) >= size and len(received) >= size + _LENGTH.unpack_from(received)[0]


async def _end(copy: _Copy) -> None:
    """Kill a copy, unless it has ended by itself, and reap it."""
    _kill(copy)
    with trio.move_on_after(REAP_S, shield=True) as scope:
        await wait_process_gone(copy.pidfd)
    if scope.cancelled_caught:  # it hangs in the kernel
        copy.ours.close()
        os.close(copy.pidfd)
    else:
        _let_go(copy)


def _kill(copy: _Copy) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(copy.pidfd, signal.SIGKILL)


def _let_go(copy: _Copy) -> None:
    """Reap a copy that has died."""
    copy.ours.close()
    os.waitid(os.P_PIDFD, copy.pidfd, os.WEXITED)
    os.close(copy.pidfd)


def _has_ended(pidfd: int) -> bool:
    return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _is_stopped(pidfd: int) -> bool:
    state = os.waitid(os.P_PIDFD, pidfd, _LOOK)
    return state is not None and state.si_code == os.CLD_STOPPED


def _death(pidfd: int, *, was_stopped: bool) -> ForkedCallDied:
    """How a copy that has died ended; it is not reaped by that."""
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    assert ended is not None, "it is waited for"
    status: int = ended.si_status
    if was_stopped:
        return ForkedCallDied("was stopped from outside", is_own_fault=False)
    if ended.si_code == os.CLD_EXITED:
        return ForkedCallDied(f"exited with code {status}", is_own_fault=True)
    cause = f"was killed by {signal.Signals(status).name}"
    is_spent = status == signal.SIGXCPU
    return ForkedCallDied(cause, is_own_fault=status != signal.SIGKILL, is_spent=is_spent)


def _keep_alone(kept_fd: int) -> None:
    """Close what is the owner's: its peers must see its end though a copy lives on."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, _STDERR_FD)
    os.closerange(_STDERR_FD + 1, kept_fd)
    os.closerange(kept_fd + 1, os.sysconf("SC_OPEN_MAX"))


def _bound(limits: CallLimits) -> None:
    statm_fd = os.open("/proc/self/statm", os.O_RDONLY)
    mapped = int(os.read(statm_fd, _STATM_BYTES).split()[0]) * _PAGE_BYTES
    os.close(statm_fd)
    for which, soft, spare in (
        # The kernel's clock of a copy begins at zero. A second more, then SIGKILL.
        (resource.RLIMIT_CPU, limits.cpu_s, 1),
        (resource.RLIMIT_AS, mapped + limits.memory_bytes, 0),
        (resource.RLIMIT_STACK, limits.stack_bytes, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        hard = resource.getrlimit(which)[1]
        wanted = soft + spare if hard == resource.RLIM_INFINITY else min(soft + spare, hard)
        resource.setrlimit(which, (min(soft, wanted), wanted))
