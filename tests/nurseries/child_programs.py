"""What the tests of real processes share: specs of the tiny children, ladders, ready.

The children are the files in `children/`; each is one behaviour, run by its bare name.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing

from triolet.nurseries.processes.process import LadderTimes, Process, ProcessSpec, open_process

from ..leaks import check_no_leaks

CHILDREN = Path(__file__).parent / "children"

# No rung is reached by chance on a loaded machine ...
PATIENT = LadderTimes(ask_s=30, terminate_s=30, kill_s=30)
# ... or the first two are on purpose.
HASTY = LadderTimes(ask_s=0.02, terminate_s=0.02, kill_s=30)

# A test that is not over by then hangs.
DEADLINE_S = 60.0
# So long nothing happens here before a condition is looked at again.
IDLE_S = 0.005


def spec_of(module: str, *, name: str = "", rank: int = 0, child_of_child: str = "") -> ProcessSpec:
    """The spec of one of the children; `child_of_child` is what `parent` starts."""
    path = os.pathsep.join(filter(None, [str(CHILDREN), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "CHILD_OF_CHILD": child_of_child}
    return ProcessSpec(name or module, module, rank=rank, environment=environment)


async def receive_word(process: Process) -> str:
    """The next message on the control socket; "" at its end."""
    await trio.lowlevel.wait_readable(process.control)
    try:
        return process.control.recv(256).decode()
    except ConnectionResetError:
        return ""


async def receive_ready(process: Process) -> str:
    """`ready` for all children: their first message. Raises `EOFError` if none comes."""
    word = await receive_word(process)
    if not word:
        raise EOFError(f"{process.spec.name} closed its control socket")
    return word


@asynccontextmanager
async def open_child(
    child: ProcessSpec | str, *, ladder: LadderTimes = PATIENT, until_ready: bool = True
) -> AsyncIterator[Process]:
    """A child, by its module or spec, that is ready; nothing of it is left afterwards."""
    spec = spec_of(child) if isinstance(child, str) else child
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec, ladder=ladder) as process:
            if until_ready:
                await receive_ready(process)
            yield process


def tell(process: Process, word: str) -> None:
    """Send one message to a child."""
    process.control.send(word.encode())


async def wait_pid_gone(pid: int) -> None:
    """Return when a process that is not ours is gone; it need not be there at all."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


async def look_again() -> None:
    """Between two looks at what other processes bring about: they need the processor now."""
    await trio.testing.wait_all_tasks_blocked(IDLE_S)


def see_stopped(pidfd: int) -> None:
    """Return when a child of ours is stopped; a signal takes effect in its own time."""
    os.waitid(os.P_PIDFD, pidfd, os.WSTOPPED | os.WNOWAIT)


def see_dead(pidfd: int) -> None:
    """Return when a child of ours is dead; it is still to be reaped."""
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)


def reap(pid: int) -> None:
    """Read the exit of a child of ours that nothing else waits for, when it is dead."""
    os.waitpid(pid, 0)
