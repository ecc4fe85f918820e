"""The kernel's death notice is armed for the very parent that made the socketpair."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from triolet.nurseries.processes.death_signal import EXIT_ORPHANED, maker_of

ARM = """
import ctypes, sys
from triolet.nurseries.processes.death_signal import arm_death_signal
parent_pid = arm_death_signal(int(sys.argv[1]))
armed = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(armed), 0, 0, 0)  # PR_GET_PDEATHSIG
print(parent_pid, armed.value)
"""
# Between us and the one who arms: its child's socketpair was made by its own parent, not by it.
WITH_ANOTHER_PARENT = """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", *sys.argv[1:]], close_fds=False).returncode)
"""


def output_of(program: str, *arguments: str, fd: int) -> list[int]:
    completed = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        pass_fds=(fd,),
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
    )
    return [int(word) for word in completed.stdout.split()]


def test_the_maker_of_a_socketpair_is_known_at_both_ends() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert maker_of(ours.fileno()) == maker_of(theirs.fileno()) == os.getpid()


@pytest.mark.slow
def test_arming_asks_for_sigkill_and_returns_the_parent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        assert output_of(ARM, str(fd), fd=fd) == [os.getpid(), signal.SIGKILL]


@pytest.mark.slow
def test_a_parent_that_died_before_the_arming_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        assert output_of(WITH_ANOTHER_PARENT, ARM, str(fd), fd=fd) == [EXIT_ORPHANED]
