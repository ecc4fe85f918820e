"""Deaths are noticed in both directions; orphans are reaped by the subreaper, and only they."""

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import attrs
import pytest
import trio

from triolet.nurseries.processes.death_watch import (
    PARENT_ASKED,
    PARENT_GONE,
    count_oom_kills,
    is_exiting,
    monitor_parent,
    wait_process_gone,
)
from triolet.nurseries.processes.orphans import child_pids
from triolet.nurseries.processes.process import open_process

from ...leaks import check_no_leaks
from ..child_programs import DEADLINE_S, HASTY, open_child, spec_of


@attrs.define
class Pipe:
    """A death pipe of which this process has both ends."""

    read_fd: int
    write_fd: int

    def close(self) -> None:
        os.close(self.write_fd)
        self.write_fd = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with check_no_leaks():
        pipe = Pipe(*os.pipe())
        yield pipe
        os.close(pipe.read_fd)
        if pipe.write_fd >= 0:
            pipe.close()


async def test_the_end_of_the_pipe_is_an_order_while_the_parent_lives(pipe: Pipe) -> None:
    reasons: list[str] = []
    async with trio.open_nursery() as nursery:
        monitor = partial(monitor_parent, parent_pid=os.getppid(), on_gone=reasons.append)
        await nursery.start(monitor, pipe.read_fd)
        os.write(pipe.write_fd, b"no end yet")
        await trio.testing.wait_all_tasks_blocked()
        assert reasons == []
        pipe.close()
    assert reasons == [PARENT_ASKED]


async def test_a_parent_that_is_gone_already(pipe: Pipe) -> None:
    reasons: list[str] = []
    no_such_pid = 2**22 + 1
    await monitor_parent(pipe.read_fd, parent_pid=no_such_pid, on_gone=reasons.append)
    assert reasons == [PARENT_GONE]


async def test_a_pid_that_a_stranger_has_taken_over_is_not_our_parent(pipe: Pipe) -> None:
    reasons: list[str] = []
    await monitor_parent(pipe.read_fd, parent_pid=os.getpid(), on_gone=reasons.append)
    assert reasons == [PARENT_GONE]


async def test_a_cancelled_monitor_says_nothing(pipe: Pipe) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            monitor = partial(monitor_parent, parent_pid=os.getppid(), on_gone=pytest.fail)
            await nursery.start(monitor, pipe.read_fd)
            scope.cancel("over")


@pytest.mark.slow
async def test_a_pipe_whose_write_end_leaked_does_not_hide_the_death() -> None:
    """The child of `leaks_death_pipe` holds the write end itself: only the pidfd tells."""
    async with open_child("leaks_death_pipe", until_ready=False) as process:
        await trio.lowlevel.wait_readable(process.control)
        word = process.control.recv(256).decode()
        assert word == PARENT_GONE


def test_who_lives_is_not_exiting() -> None:
    assert not is_exiting(os.getpid())
    assert is_exiting(2**22 + 1)


@pytest.mark.slow
async def test_a_zombie_is_exiting_and_its_pidfd_says_so() -> None:
    async with open_child("deaf", ladder=HASTY, until_ready=False) as process:
        assert not is_exiting(process.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_process_gone, process.pidfd)
            nursery.start_soon(wait_process_gone, process.pidfd)
            process.send_signal(signal.SIGKILL)
        assert process.exit is None  # a zombie until somebody reaps it
        assert is_exiting(process.pid)


@pytest.mark.slow
async def test_a_wait_that_was_given_up_tells_no_other_of_its_death() -> None:
    """Both waits have a descriptor of the same number, one after the other; the pidfds live on."""
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with (
            open_process(spec_of("deaf", name="dies"), ladder=HASTY) as dies,
            open_process(spec_of("deaf", name="lives"), ladder=HASTY) as lives,
        ):
            with trio.CancelScope() as given_up:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait_process_gone, dies.pidfd)
                    await trio.testing.wait_all_tasks_blocked()
                    given_up.cancel("another task waits for it now")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_process_gone, lives.pidfd)
                await trio.testing.wait_all_tasks_blocked()
                dies.send_signal(signal.SIGKILL)
                assert (await dies.wait_exited()).signal == signal.SIGKILL
                # Its pidfd hangs up once it is reaped; the loop looks once more before it sleeps.
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert len(nursery.child_tasks) == 1
                nursery.cancel_scope.cancel("nothing came of it")


PROGRAM = """
import os, subprocess, sys
from pathlib import Path
import trio
from triolet.nurseries.tasks.background import start_background_task
from triolet.nurseries.processes.orphans import become_subreaper, reap_orphans, run_reaper

GRANDCHILD = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"

async def main():
    own = subprocess.Popen(["sleep", "60"])
    own.kill()  # dead and not reaped while the reaper works
    parent = subprocess.Popen([sys.executable, "-c", GRANDCHILD], stdout=subprocess.PIPE)
    orphan = int(parent.stdout.readline())
    mine = {own.pid, parent.pid}
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, run_reaper, lambda: mine, name="reaper")
        parent.wait()
        os.kill(orphan, 9)
        await trio.sleep(0.2)  # the owners take their time
        own.wait()
        with trio.fail_after(60):
            while Path(f"/proc/{orphan}").exists():
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel("the orphan is gone")
    print("own", own.returncode, "orphan gone", reap_orphans(mine))

become_subreaper()
trio.run(main)
"""


@pytest.mark.slow
def test_an_orphan_is_reaped_and_an_own_child_is_not() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240
    )
    assert completed.stdout.strip() == "own -9 orphan gone True", completed.stderr


@pytest.mark.slow
def test_a_process_without_children_has_none_to_reap() -> None:
    program = (
        "from triolet.nurseries.processes.orphans import reap_orphans; print(reap_orphans(set()))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
    )
    assert completed.stdout.strip() == "True", completed.stderr


@pytest.mark.slow
def test_the_children_are_listed_while_they_are_there() -> None:
    before = set(child_pids(os.getpid()))
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            assert set(child_pids(os.getpid())) - before == {process.pid}
        finally:
            process.kill()
    assert process.pid not in child_pids(os.getpid())


def test_an_unknown_pid_has_no_children() -> None:
    assert child_pids(2**22 + 1) == []


def test_kills_for_want_of_memory_are_counted_where_the_kernel_does(
    tmp_path: pathlib.Path,
) -> None:
    ours = pathlib.Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    assert count_oom_kills(tmp_path) == 0  # nothing counts memory here
    (tmp_path / ours).mkdir(parents=True, exist_ok=True)
    events = tmp_path / ours / "memory.events"
    events.write_text("low 0\nhigh 7\nmax 9\noom 2\noom_kill 5\noom_group_kill 1\n")
    assert count_oom_kills(tmp_path) == 5
    events.write_text("garbage\n")
    assert count_oom_kills(tmp_path) == 0
