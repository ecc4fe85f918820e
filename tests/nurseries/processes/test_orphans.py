"""A grandchild whose parent died is adopted and reaped by a subreaper, our own children are not."""

import os
import subprocess
import sys

import pytest

from triolet.nurseries.processes.orphans import child_pids

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
def test_an_orphan_that_nobody_told_of_is_reaped_and_an_own_child_is_not() -> None:
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


def test_nobody_has_none() -> None:
    assert child_pids(2**22 + 1) == []
