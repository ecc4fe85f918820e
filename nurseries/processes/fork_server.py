"""Fork server: a process that has imported everything and forks the children of one role.

Imports are most of what a start costs: 0.8 s of CPU time for a frontend, and twice that by the
clock where processors are short, as they are when processes die by the dozen. A fork costs
milliseconds, and shares the memory of what was imported.

What is forked is a child of the server's parent and not of the server (`CLONE_PARENT`): its death
notice, its exit and its end are as those of a spawned process, and the death of the server does not
touch it. The kernel itself writes its number where the parent reads it, so that it has an owner
though the server dies before it has answered.

The server has one thread and runs no loop, so nothing is in the middle of anything when it forks;
the interpreter's own handlers run as around `os.fork`. Those of C libraries do not, so a module
that has started threads when it is imported cannot be forked.

A module may prepare what all its processes need besides, from what the parent sends: loaded once,
it is there in each that is forked.
"""

import ctypes
import errno
import faulthandler
import mmap
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
import trio

from ..tasks.background import waiting_for
from .boot import EXIT_ORPHANED, EXIT_STOPPED, arm_death_signal, has_ended
from .process import Process
from .spawned import Spawned, open_ends, spawn
from .title import set_title

# OpenBLAS, which numpy brings, starts threads when it is imported.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
# A fork takes milliseconds; the machine may have other work.
FORK_S = 2.0
_PREPARE, _WARM, _FORKED = b"prepare", b"warm", b"0"
# The pid of what was forked, before what is to be prepared with.
_NO_PID = bytes(4)
_SEPARATOR = "\n"
_REQUEST_BYTES_MAX = 4096
_ANSWER_BYTES_MAX = 64
# Constants of the kernel's unistd_64.h, sched.h and prctl.h.
_SYS_CLONE = 56
_CLONE_PARENT = 0x00008000
_CLONE_PARENT_SETTID = 0x00100000
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
_PR_GET_TID_ADDRESS = 40


@attrs.define(eq=False)
class ForkServer:
    """The parent's side of a server that runs as `process`. One fork at a time."""

    process: Process
    fork_s: float = FORK_S
    warm: bool = attrs.field(default=False, init=False)
    # The server did not answer, and was killed for that.
    hung: bool = attrs.field(default=False, init=False)
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    # Shared with the server; -1 before there is a preparation.
    _memory_fd: int = attrs.field(default=-1, init=False)

    async def wait_warm(self, preparation: bytes = b"") -> None:
        """Have it prepare, once; return when everything is there. Raises `OSError` if it is gone.

        From now on it must be closed.
        """
        self._memory_fd = os.memfd_create("triolet-preparation")
        os.pwrite(self._memory_fd, _NO_PID + preparation, 0)
        socket.send_fds(self.process.control, [_PREPARE], [self._memory_fd])
        await self._receive()
        os.ftruncate(self._memory_fd, len(_NO_PID))  # a tokenizer may have many megabytes
        self.warm = True

    async def fork(self, ahead: Sequence[str] = ()) -> Spawned:
        """A process at the place where `run_child` was called; the caller owns it at once.

        `ahead` are what it starts before all else, see `ProcessSpec`. Raises `OSError` if there is
        no memory or descriptor for it, or the server is gone or silent for `fork_s` seconds; then
        it is killed. Cancellation: takes effect before it or after it.
        """
        async with self._lock:
            with open_ends() as (take, child_fds):
                room = os.memfd_create("triolet-room")  # for the pidfd: it must not fail any more
                try:
                    os.pwrite(self._memory_fd, _NO_PID, 0)
                    # A message of no byte would be the end.
                    request = (_SEPARATOR.join(ahead) or _SEPARATOR).encode()
                    socket.send_fds(self.process.control, [request], child_fds)
                    failure = await self._forks_no_more()
                finally:
                    os.close(room)
                pid = int.from_bytes(os.pread(self._memory_fd, len(_NO_PID), 0), sys.byteorder)
                if pid == 0:
                    raise failure
                with suppress(ProcessLookupError):  # it does so itself, a moment later
                    os.setpgid(pid, 0)
                return take(pid, os.pidfd_open(pid))

    async def _forks_no_more(self) -> OSError:
        """Return when it has answered, or is dead, and why nothing was forked if nothing was.

        Takes at most twice `fork_s` seconds. Shielded from cancellation.
        """
        with trio.CancelScope(shield=True, relative_deadline=self.fork_s) as patience:
            try:
                number = int(await self._receive())
                return OSError(number, os.strerror(number))
            except ConnectionResetError as error:
                failure: OSError = error
        if patience.cancelled_caught:
            self.hung = True
            self.process.kill_group()
            failure = TimeoutError(f"{self.process.spec.name} does not answer")
        with trio.CancelScope(shield=True, relative_deadline=self.fork_s):
            await self.process.wait_gone()
        return failure

    async def close(self) -> None:
        """Before the server is ended: return when no fork is under way, so that what it makes has
        an owner. Takes at most twice `fork_s` seconds. Shielded from cancellation.
        """
        with trio.CancelScope(shield=True):
            async with self._lock:
                if self._memory_fd >= 0:
                    os.close(self._memory_fd)
                    self._memory_fd = -1

    async def _receive(self) -> bytes:
        control, name = self.process.control, self.process.spec.name
        try:
            with waiting_for(f"an answer of {name}"):
                await trio.lowlevel.wait_readable(control)
        except trio.ClosedResourceError:
            raise ConnectionResetError(errno.ECONNRESET, f"{name} was ended") from None
        answer = control.recv(_ANSWER_BYTES_MAX)
        if not answer:
            raise ConnectionResetError(errno.ECONNRESET, f"{name} is gone")
        return answer


def serve_forks(
    own: Sequence[int], prepare: Callable[[bytes], object]
) -> tuple[list[int], tuple[Spawned, ...]]:
    """Prepare with what comes first, then fork for each request; return in what was forked, with
    three descriptors like our `own`, and the processes that it was to start ahead.

    In the server itself it never returns: it exits when a stop is ordered, or the parent is gone.
    Raises `RuntimeError` if this process has more than one thread.
    """
    control_fd, death_fd, words_fd = own
    set_title("fork server")
    control = socket.socket(fileno=control_fd)
    _, memory = _next_request(control, death_fd)
    if not memory:
        raise _no_descriptor()
    forked_pid = ctypes.c_int.from_buffer(mmap.mmap(memory[0], len(_NO_PID)))
    forked_pid.value = 0  # the page is there from now on
    prepare(os.pread(memory[0], os.fstat(memory[0]).st_size, len(_NO_PID)))
    os.close(memory[0])
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("a process with several threads cannot be forked")
    control.send(_WARM)
    while True:
        request, fds = _next_request(control, death_fd)
        try:
            if len(fds) < 3:  # the kernel drops those for which there is no room
                raise _no_descriptor()
            pid = fork_sibling(forked_pid)
        except OSError as error:
            control.send(str(error.errno).encode())
        else:
            if pid == 0:
                control.close()
                os.close(death_fd)
                os.close(words_fd)
                return fds, _begin(fds, request.decode().split(_SEPARATOR))
            control.send(_FORKED)
        for fd in fds:
            os.close(fd)


def _no_descriptor() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def fork_sibling(forked_pid: ctypes.c_int) -> int:
    """A copy of this process as a child of its parent: its pid here, 0 in the copy.

    The kernel has stored the pid in `forked_pid` before the copy runs, whatever happens to us. For
    a process of one thread. Raises `OSError`.
    """
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)  # both keep the lock
    address = ctypes.c_void_p()
    flags = _CLONE_PARENT | _CLONE_PARENT_SETTID | signal.SIGCHLD
    # The C library's word for the thread's number: the copy has another, as after fork().
    if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) == 0:
        flags |= _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
    libc.syscall.restype = ctypes.c_long
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(
        ctypes.c_long(_SYS_CLONE),
        ctypes.c_ulong(flags),
        None,  # on this stack
        ctypes.byref(forked_pid),
        address,
        None,
    )
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    failure = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(failure, os.strerror(failure))
    return pid


def _next_request(control: socket.socket, death_fd: int) -> tuple[bytes, list[int]]:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(death_fd, select.POLLRDHUP)
    poll.poll()
    if has_ended(death_fd):
        os._exit(EXIT_STOPPED)
    request, fds, _, _ = socket.recv_fds(control, _REQUEST_BYTES_MAX, 3)
    if not request:
        os._exit(EXIT_ORPHANED)
    return request, fds


def _begin(fds: list[int], ahead: list[str]) -> tuple[Spawned, ...]:
    """Do in the copy what `boot` does before the imports."""
    control_fd, _, words_fd = fds
    os.setpgid(0, 0)
    arm_death_signal(control_fd)
    faulthandler.enable(file=words_fd, all_threads=True)
    return tuple(spawn(module) for module in ahead if module)
