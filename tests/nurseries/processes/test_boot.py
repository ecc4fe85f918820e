"""A child is armed and can leave last words before anything of its own is imported."""

import os
import signal
import socket
import subprocess
import sys

import pytest
import trio

from triolet.nurseries.processes.boot import EXIT_ORPHANED, maker_of
from triolet.nurseries.processes.process import ProcessSpec, open_process

from ...leaks import check_no_leaks
from ..child_programs import CHILDREN, DEADLINE_S, PATIENT, receive_ready, spec_of

pytestmark = pytest.mark.slow

ARM = """
import ctypes, sys
from triolet.nurseries.processes.boot import arm_death_signal
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


async def test_an_import_that_fails_is_told() -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec_of("fails_at_import"), ladder=PATIENT) as process:
            seen = await process.wait_exited()
    assert seen.code == 1
    assert "No module named 'no_such_module_anywhere'" in seen.last_words


async def test_a_module_that_is_not_there_is_told() -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(ProcessSpec("ghost", "triolet.no_such"), ladder=PATIENT) as process:
            seen = await process.wait_exited()
    assert "No module named triolet.no_such" in seen.last_words


async def test_the_module_is_the_main_program_already_armed() -> None:
    """`armed_at_import` looks in its first line what the kernel was asked for."""
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec_of("armed_at_import"), ladder=PATIENT) as process:
            armed, name, arguments = (await receive_ready(process)).split()
    assert (armed, name, arguments) == ("9", "__main__", "4")


async def test_the_current_folder_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHILDREN)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(ProcessSpec("here", "deaf"), ladder=PATIENT) as process:
            seen = await process.wait_exited()
    assert "No module named deaf" in seen.last_words


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


def test_arming_asks_for_sigkill_and_returns_the_parent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        assert output_of(ARM, str(fd), fd=fd) == [os.getpid(), signal.SIGKILL]


def test_a_parent_that_died_before_the_arming_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        assert output_of(WITH_ANOTHER_PARENT, ARM, str(fd), fd=fd) == [EXIT_ORPHANED]
