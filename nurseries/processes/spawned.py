"""Spawned child process: its pid and four descriptors, to be taken over by an owner.

Needs no loop, so that `boot` can spawn, too: a process whose own imports take long can start a
child of its own before them, which then imports beside it (*ahead*). Such a child is adopted by the
block that would have spawned it. Until then the kernel's death notice and the death pipe end it
with its parent, like any other.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import attrs

from .last_words import LastWords

BOOT_MODULE = f"{__package__}.boot"
_STDERR_FD = 2
# Variables that every child inherits: what interpreters, loaders, compilers, numeric libraries and
# devices read, and our own. All others stay with their parent, keys and tokens of anything above
# all; a role that needs more is given it by name.
INHERITED_NAMES = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM"),
    *("TMPDIR", "TEMP", "TMP", "SPT_NOENV", "VIRTUAL_ENV"),
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS"),
    *("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"),
)
INHERITED_PREFIXES = (
    *("TRIOLET_", "PYTHON", "LC_", "LD_", "XDG_", "GLIBC_", "MALLOC_", "COVERAGE_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "RAYON_", "RUST_", "TOKENIZERS_"),
    *("CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "CUBLAS_", "CUDNN_", "TORCH", "PYTORCH_", "TRITON_"),
    *("HIP_", "HSA_", "ROCR_", "ROCM_", "ZE_", "ONEAPI_", "SYCL_"),
    *("ASAN_", "LSAN_", "TSAN_", "UBSAN_"),
)
# Ours, of the root alone.
SECRET_SUFFIXES = ("_KEY", "_KEYS")
# Names more, separated by commas: for a worker module of one's own.
PASS_VARIABLE = "TRIOLET_PASS_ENV"
# In place of modules ahead: the process becomes a fork server, see `fork_server`.
FORKS = "--forks"


@attrs.frozen
class Spawned:
    """`control_fd` is our end of the SOCK_SEQPACKET socketpair, `death_fd` our end of the
    death pipe, `words_fd` the last words. All are ours to close; the exit is ours to read."""

    pid: int
    pidfd: int
    control_fd: int
    death_fd: int
    words_fd: int

    def encode(self) -> str:
        """Encode as a command-line argument of this very process; see `decode`."""
        return ",".join(map(str, attrs.astuple(self)))

    @classmethod
    def decode(cls, text: str) -> "Spawned":
        """Decode what `encode` wrote. Raises `ValueError` or `TypeError` for anything else."""
        return cls(*map(int, text.split(",")))


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of these that any child may see."""
    passed = environ.get(PASS_VARIABLE, "").split(",")
    return {
        name: value
        for name, value in environ.items()
        if name in passed
        or name in INHERITED_NAMES
        or (name.startswith(INHERITED_PREFIXES) and not name.endswith(SECRET_SUFFIXES))
    }


def selected(environ: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """The variables of these whose names begin so, in upper or lower case."""
    return {name: value for name, value in environ.items() if name.upper().startswith(prefixes)}


@contextmanager
def open_ends() -> Iterator[tuple[Callable[[int, int], Spawned], tuple[int, int, int]]]:
    """Open both ends of what joins us to a child: a function of its pid and pidfd, which takes our
    ends over, and the child's own ends. Ends that were not taken are closed. Raises `OSError`."""
    with ExitStack() as unless_taken, ExitStack() as child_ends:
        words = LastWords.create()
        unless_taken.callback(words.close)
        control, child_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        unless_taken.callback(control.close)
        child_ends.callback(child_control.close)
        # Sockets, since those can be shut down: a copy of our end in some fork cannot keep it open.
        death, child_death = socket.socketpair()
        unless_taken.callback(death.close)
        child_ends.callback(child_death.close)
        control.setblocking(False)

        def take(pid: int, pidfd: int) -> Spawned:
            unless_taken.pop_all()
            return Spawned(pid, pidfd, control.detach(), death.detach(), words.fd)

        yield take, (child_control.fileno(), child_death.fileno(), words.fd)


def spawn(
    module: str,
    *,
    ahead: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    forks: bool = False,
) -> Spawned:
    """Start `python -m module` behind `boot`, in the thread that is to own it. Raises `OSError`.

    `environment` is added to what any child inherits, see `inherited`. `ahead` are modules that the
    child starts in turn, as children of its own, before it imports anything; it finds them in
    `ChildFds.ahead`. With `forks` it becomes a fork server of `module`.
    """
    words = [FORKS] if forks else []
    with open_ends() as (take, child_fds), ExitStack() as unless_started:
        popen = subprocess.Popen(
            [sys.executable, "-P", "-m", BOOT_MODULE, module, *map(str, child_fds), *words, *ahead],
            stdin=subprocess.DEVNULL,
            stdout=_STDERR_FD,  # a child's stray print must not get into its parent's output
            pass_fds=child_fds,
            process_group=0,  # the terminal's Ctrl-C does not reach it; it dies with its children
            env={**inherited(os.environ), **(environment or {})},
        )
        unless_started.callback(popen.wait)
        unless_started.callback(popen.kill)
        pidfd = os.pidfd_open(popen.pid)
        # The exit is ours to read from here on, through the pidfd; Popen would do it by number.
        popen.returncode = 0
        unless_started.pop_all()
        return take(popen.pid, pidfd)
