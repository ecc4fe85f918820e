"""Program of a reader: run beside a server, where its commands are found; it must end well."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import trio

from ..end_to_end.server import DEADLINE_S, Server


async def run_program(
    command: Sequence[str], server: Server, folder: pathlib.Path, **environment: str
) -> str:
    """Run it to its end; returns what it prints."""
    variables = {
        **os.environ,
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(server.folder),
        **environment,
    }
    with trio.fail_after(2 * DEADLINE_S):
        done = await trio.run_process(
            command,
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            cwd=folder,
            env=variables,
        )
    printed = done.stdout.decode()
    assert done.returncode == 0, printed
    return printed
