"""A grandchild whose parent died is adopted and reaped, and only by a subreaper."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, select, subprocess, sys
from triolet.nurseries.subreaper import become_subreaper, reap_adopted

if sys.argv[1] == "adopt":
    become_subreaper()
parent = subprocess.Popen(
    [sys.executable, "-c", "import subprocess; p = subprocess.Popen(['sleep', '60']);"
     "print(p.pid, flush=True)"],
    stdout=subprocess.PIPE,
)
pid = int(parent.stdout.readline())
pidfd = os.pidfd_open(pid)
parent.wait()
os.kill(pid, 9)
select.select([pidfd], [], [])
print(reap_adopted(pidfd), reap_adopted(pidfd))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "printed"), [("adopt", "True False"), ("not", "False False")])
def test_orphans_are_reaped_by_a_subreaper_alone(mode: str, printed: str) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, timeout=30
    )
    assert completed.stdout.strip() == printed, completed.stderr
