"""First module of every child process: death signal and signal handlers, then its own module.

    python -m triolet.nurseries.processes.boot MODULE CONTROL_FD DEATH_FD WORDS_FD [AHEAD_MODULE …]
    python -m triolet.nurseries.processes.boot MODULE CONTROL_FD DEATH_FD WORDS_FD --forks

A module that imports a tensor library needs seconds before its first line of code. If its parent
dies meanwhile, or asks it to stop, or the import itself fails, there must be a death notice, a
signal handler and last words already. So this module imports next to nothing, and is not a part of
`child`, in whose `run_child` most modules end.

Signals are the root's affair: systemd, a closed terminal and `timeout` send theirs to every process
of the tree, and a child that obeyed them would cut the streams that the root is draining. A child
ends when its parent ends the death pipe; SIGTERM, the ladder's next rung, counts only after that.
"""

import ctypes
import errno
import faulthandler
import os
import runpy
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import NoReturn

from .heap import pause_collector
from .last_words import write_last_words

# A constant of the kernel's prctl.h.
_PR_SET_PDEATHSIG = 1
# A twentieth of the memory that there is: more than a root uses where engines find room.
OOM_SCORE_MORE = 50
_OOM_SCORE_MAX = 1000
# struct ucred: pid, uid, gid.
_UCRED = struct.Struct("3i")

# A stop that was ordered, before or after the main function began.
EXIT_STOPPED = 0
EXIT_FAILED = 1
# The process was refused memory, a descriptor or a thread, or one of its own was.
EXIT_SHORTAGE = 75
# Errors of a system that is short of memory or descriptors: no fault of what was opened, another
# start may succeed.
SHORTAGES = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_NO_THREAD = "can't start new thread"
# The parent died before the notice was armed, or was gone when the death monitor looked. It cannot
# read this any more; it is for a trace of the process.
EXIT_ORPHANED = 71


def boot(module: str, fds: list[str], ahead: list[str]) -> None:
    """Arm, then run `module` as the main program with `fds` as its arguments.

    The modules `ahead` are started before, as children of this process; behind the fds come
    what they have become (`Spawned.encode`). An option in their place is passed on.

    Faults of the interpreter are written to the last words, and so is an error that the module
    raises; then the process ends. Printed by the interpreter as well, line by line, it would be in
    the midst of others' log.
    """
    control_fd, death_fd, words_fd = map(int, fds)
    take_signals(partial(_exit_if_asked, death_fd))
    arm_death_signal(control_fd)
    faulthandler.enable(file=words_fd, all_threads=True)
    pause_collector()
    try:
        started = ahead
        if ahead and not ahead[0].startswith("-"):
            from .spawned import spawn

            started = [spawn(each).encode() for each in ahead]
        sys.argv = [module, *fds, *started]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:
        end_by(error, words_fd, code_of)


def code_of(error: BaseException) -> int:
    """The exit code of a process that this error ends."""
    is_short = (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) in SHORTAGES
        or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD)
    )
    return EXIT_SHORTAGE if is_short else EXIT_FAILED


def end_by(
    error: BaseException, words_fd: int, exit_code: Callable[[BaseException], int]
) -> NoReturn:
    """Append the error to the last words, and end the process with its exit code.

    Without words where there is no memory for them: nothing may get from here to the interpreter's
    own exit, which waits for sockets and threads, if need be for ever.
    """
    code = EXIT_SHORTAGE
    try:
        code = exit_code(error)
        # The first line is what the parent reports of this death.
        headline = f"{type(error).__name__}: {error}".partition("\n")[0]
        trace = "".join(traceback.format_exception(error))
        write_last_words(words_fd, f"{headline}\n\n{trace}")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def take_signals(handle_sigterm: Callable[[int, FrameType | None], object]) -> None:
    """Ignore SIGINT and SIGHUP; SIGTERM has a handler, since programs that we start inherit what is
    ignored."""
    signal.signal(signal.SIGTERM, handle_sigterm)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _exit_if_asked(death_fd: int, _number: int, _frame: FrameType | None) -> None:
    """SIGTERM during the imports."""
    if has_ended(death_fd):
        os._exit(EXIT_STOPPED)


def has_ended(death_fd: int) -> bool:
    """Whether the parent has ended the death pipe, or is gone. Never waits."""
    poll = select.poll()
    poll.register(death_fd, select.POLLRDHUP)
    return bool(poll.poll(0))


def arm_death_signal(control_fd: int) -> int:
    """`request_death_signal`, and return the parent's pid.

    It works while C code holds the interpreter lock, when no Python of ours could notice anything.
    Exits at once if the parent is dead already. `control_fd` is our end of the socketpair which the
    parent made: its credentials name the maker, so no pid on the command line can be stale. Raises
    `OSError` where the kernel refuses. Harmless when repeated.
    """
    request_death_signal()
    stand_before_parent(OOM_SCORE_MORE)
    parent_pid = maker_of(control_fd)
    # In this order: a parent that dies before this line is seen here, a later one by the kernel.
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHANED)
    return parent_pid


def request_death_signal() -> None:
    """Have the kernel send SIGKILL to us when our parent dies. Raises `OSError` if it refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) is refused")


def stand_before_parent(score: int) -> None:
    """Have the kernel choose us rather than our parent where it kills for want of memory.

    So the root, whose end is everybody's, comes last. No privilege is needed for a higher score;
    where it cannot be set, such as in a sandbox without these files, sizes decide.
    """
    with suppress(OSError, ValueError):
        with open(f"/proc/{os.getppid()}/oom_score_adj", encoding="ascii") as file:
            parent = int(file.read())
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(min(_OOM_SCORE_MAX, parent + score)))


def maker_of(socketpair_fd: int) -> int:
    """The pid of the process that made a Unix socketpair, as the kernel wrote it down."""
    with socket.socket(fileno=os.dup(socketpair_fd)) as end:
        data = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(data)[0])


if __name__ == "__main__":
    boot(sys.argv[1], sys.argv[2:5], sys.argv[5:])
