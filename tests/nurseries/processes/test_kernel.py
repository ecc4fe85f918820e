"""What /proc says of real processes: of each state, and which of them ran."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio

from triolet.nurseries.processes.hang_watch import ProcessState
from triolet.nurseries.processes.kernel import look_at_process

from ..child_programs import look_again

pytestmark = pytest.mark.slow
DEADLINE_S = 30.0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    yield from run("sleep", "1000")


@pytest.fixture
def computer() -> Iterator[subprocess.Popen[bytes]]:
    yield from run(sys.executable, "-c", "while True: pass")


def run(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command)
    yield process
    process.kill()
    process.wait()


async def wait_state(pid: int, state: ProcessState) -> None:
    with trio.fail_after(DEADLINE_S):
        while look_at_process(pid).state is not state:
            await look_again()


async def test_a_sleeper_is_stopped_and_goes_on(sleeper: subprocess.Popen[bytes]) -> None:
    await wait_state(sleeper.pid, ProcessState.ASLEEP)
    sleeper.send_signal(signal.SIGSTOP)
    await wait_state(sleeper.pid, ProcessState.STOPPED)
    stopped = look_at_process(sleeper.pid)
    await look_again()
    assert look_at_process(sleeper.pid) == stopped, "it does not run"
    assert look_at_process(sleeper.pid, every_thread=False) == stopped, "it has no other thread"
    sleeper.send_signal(signal.SIGCONT)
    await wait_state(sleeper.pid, ProcessState.ASLEEP)
    assert look_at_process(sleeper.pid).runs > stopped.runs
    sleeper.kill()
    await wait_state(sleeper.pid, ProcessState.GONE)


async def test_a_computing_process_uses_time(computer: subprocess.Popen[bytes]) -> None:
    pid = computer.pid
    await wait_state(pid, ProcessState.RUNNABLE)
    before = look_at_process(pid).cpu_s[pid]
    with trio.fail_after(DEADLINE_S):
        while look_at_process(pid).cpu_s[pid] <= before:
            await look_again()


def test_a_look_at_ourselves_and_at_nothing() -> None:
    look = look_at_process(os.getpid())
    assert look.state is ProcessState.RUNNABLE
    assert look.cpu_s[os.getpid()] > 0
    assert look_at_process(os.getpid(), every_thread=False).cpu_s.keys() == {os.getpid()}
    assert look_at_process(2**22 + 1).state is ProcessState.GONE
