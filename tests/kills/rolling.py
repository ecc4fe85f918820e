"""Rolling restart of a served run, by the command that an operator types."""

import os
import subprocess
import sys

import trio

from triolet.fuzz.chaos.served_run import ServedRun

# Engines and frontends one after the other, each with its grace, on a busy machine.
ROLLING_S = 300.0


async def restart_rolling(served: ServedRun) -> tuple[int, str]:
    """Its exit code, and what it says. Raises `trio.TooSlowError`; the command is then ended."""
    with trio.fail_after(ROLLING_S):
        done = await trio.run_process(
            [sys.executable, "-m", "triolet", "restart", served.run_id, "--rolling"],
            env={**os.environ, "XDG_RUNTIME_DIR": str(served.folder)},
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode, done.stdout.decode()
