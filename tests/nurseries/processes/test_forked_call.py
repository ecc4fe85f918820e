"""Forked calls: results, crashes, bounds and cancellation, in a program of one thread."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = "triolet.tests.nurseries.forked_program"
ENDS = {
    "result": "found",
    "too large": ["exited with code 1", True],
    "memory": ["exited with code 1", True],
    "processor": ["was killed by SIGXCPU", True],
    "nice": "3",
    "crash": ["was killed by SIGSEGV", True],
    "raises": ["exited with code 1", True],
    "killed": ["was killed by SIGKILL", False],
    "stopped": ["was stopped from outside", False],
}
# How many calls the copy has had that gave what counts.
REUSED = {
    "again": True,
    "used, bad": ["1", "bad 1"],
    "used, busy": ["1", "1"],
    "used, crash if used": ["1", "1"],
    "used, crash": ["1", ["was killed by SIGSEGV", True]],
    "used, killed": ["1", ["was killed by SIGKILL", False]],
    "used, killed or stopped as it waits": ["1", "1"],
}
WAITED = {
    "long": f"{1 << 20} bytes",
    "waited, SIGKILL": "found",  # by another copy
    "waited, SIGSTOP": ["was stopped from outside", False],
    "children left": 0,
}


def test_a_call_ends_with_its_result_or_says_how_it_died() -> None:
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    for name in ("descriptors", "ahead: descriptors"):
        # Standard ones, the socket, and the folder that is being listed.
        assert len(json.loads(ends.pop(name))) <= 5
    assert ends == ENDS | {f"ahead: {name}": end for name, end in ENDS.items()} | WAITED | REUSED
    assert done.stderr == "", "what a library says of a client's text is in no log"
