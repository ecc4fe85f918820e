"""Forked call: a function in a copy of this process, with bounds, whose crash is an answer.

For work that may crash a library, never end, or fill memory: the copy computes one result and
exits, or dies, and its owner learns which. A copy costs a millisecond or two, and dies with its
owner (`PR_SET_PDEATHSIG`).

Only a process of one thread may call this: another thread's locks would be held for ever in the
copy. So it must not use `trio.to_thread`.
"""

import os
import resource
import signal
from collections.abc import Callable

import attrs
import trio

from ..tasks.background import waiting_for
from .boot import request_death_signal, stand_before_parent
from .death_watch import wait_process_gone

# Results fit a pipe, so that the copy never waits for its owner: `pipe(7)`, 16 pages.
RESULT_BYTES_MAX = 65_536
# A copy that someone has stopped is found after at most so long.
STOPPED_LOOK_S = 0.5
# A killed copy gives back at most some hundred MiB.
REAP_S = 10.0
_PAGE_BYTES = resource.getpagesize()
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
    owner's.
    """

    cpu_s: int
    memory_bytes: int
    stack_bytes: int
    niceness: int = 0


@attrs.frozen
class ForkedCallDied(Exception):
    """The copy ended without a result; `is_own_fault` unless it was killed or stopped from outside.

    `cause` is the predicate of a sentence about the copy.
    """

    cause: str
    is_own_fault: bool

    def __str__(self) -> str:
        return f"the call's process {self.cause}"


async def call_forked(function: Callable[[], bytes], limits: CallLimits) -> bytes:
    """The result of `function`, at most `RESULT_BYTES_MAX` bytes, computed in a copy of us.

    What the function prints to stderr is dropped. Raises `ForkedCallDied`; `OSError` if there is no
    memory or descriptor for a copy. Cancellation: the copy is killed and reaped.
    """
    assert len(os.listdir("/proc/self/task")) == 1, "a process with several threads cannot fork"
    result_fd, pidfd = _fork(function, limits)
    try:
        was_stopped = await _wait_ended(pidfd)
        return _result(_reap(pidfd), result_fd, was_stopped=was_stopped)
    finally:
        os.close(result_fd)
        os.close(pidfd)


def _fork(function: Callable[[], bytes], limits: CallLimits) -> tuple[int, int]:
    """Begin the copy: where its result is read, and its pidfd; both are the caller's."""
    result_fd, child_fd = os.pipe2(os.O_CLOEXEC)
    pid = 0
    try:
        pid = os.fork()
        if pid == 0:
            _run_copy(function, limits, child_fd)
        return result_fd, os.pidfd_open(pid)
    except BaseException:
        os.close(result_fd)
        if pid:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
            os.waitpid(pid, 0)
        raise
    finally:
        os.close(child_fd)


async def _wait_ended(pidfd: int) -> bool:
    """Wait for the end of the copy, which is not reaped; whether it was ended as it was stopped."""
    was_stopped = False
    try:
        with waiting_for("a forked call"):
            while True:
                with trio.move_on_after(STOPPED_LOOK_S):
                    await wait_process_gone(pidfd)
                    return was_stopped
                if _is_stopped(pidfd):
                    was_stopped = True
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except BaseException:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        with trio.move_on_after(REAP_S, shield=True):
            await wait_process_gone(pidfd)
            _reap(pidfd)
        raise


def _is_stopped(pidfd: int) -> bool:
    state = os.waitid(os.P_PIDFD, pidfd, _LOOK)
    return state is not None and state.si_code == os.CLD_STOPPED


def _reap(pidfd: int) -> os.waitid_result:
    """How a copy that has died ended; its number is free afterwards."""
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    assert ended is not None, "it is waited for"
    return ended


def _result(ended: os.waitid_result, result_fd: int, *, was_stopped: bool) -> bytes:
    status: int = ended.si_status
    if was_stopped:
        raise ForkedCallDied("was stopped from outside", is_own_fault=False)
    if ended.si_code != os.CLD_EXITED:
        cause = f"was killed by {signal.Signals(status).name}"
        raise ForkedCallDied(cause, is_own_fault=status != signal.SIGKILL)
    if status:
        raise ForkedCallDied(f"exited with code {status}", is_own_fault=True)
    return os.read(result_fd, RESULT_BYTES_MAX)


def _run_copy(function: Callable[[], bytes], limits: CallLimits, result_fd: int) -> None:
    """Compute, hand over the result, exit; never returns."""
    try:
        request_death_signal()
        stand_before_parent(_OOM_SCORE_MORE)
        _keep_alone(result_fd)
        _bound(limits)
        result = function()
        if len(result) <= RESULT_BYTES_MAX:
            os.write(result_fd, result)
            os._exit(0)
    finally:
        os._exit(_FAILED)


def _keep_alone(result_fd: int) -> None:
    """Close what is the owner's: its peers must see its end though a copy lives on."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, _STDERR_FD)
    os.closerange(_STDERR_FD + 1, result_fd)
    os.closerange(result_fd + 1, os.sysconf("SC_OPEN_MAX"))


def _bound(limits: CallLimits) -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * _PAGE_BYTES
    os.nice(limits.niceness)
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
