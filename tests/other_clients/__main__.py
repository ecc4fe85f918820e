"""Runs the clients of others against `triolet serve` with the bundled model, each once.

`make clients` installs them into an environment of their own and calls this; `make test` does not,
since they bring a hundred packages and versions of the SDK that ours must not be bound to.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from ..end_to_end.server import CLIENTS, DEADLINE_S, module_server

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ("agents_socket.py", "langchain_both.py", "litellm_chat.py")
LANES, TOKENS = "4", "32"


def main() -> None:
    """Exit 1 when one fails. `argv[1]` is the Python of the clients' environment."""
    here, python = pathlib.Path(__file__).parent, sys.argv[1]
    environment = {**os.environ, "NODE_PATH": str(ROOT / ".cache" / "npm" / "node_modules")}
    failed = False
    with (
        tempfile.TemporaryDirectory() as folder,
        module_server(pathlib.Path(folder)) as server,
    ):
        commands = [[python, str(here / program), server.url] for program in PROGRAMS]
        commands.append(["node", str(CLIENTS / "lanes.cjs"), server.url, LANES, TOKENS])
        for command in commands:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=2 * DEADLINE_S,
                check=False,
                env=environment,
            )
            failed |= done.returncode != 0
            said = done.stdout[:400] if done.returncode == 0 else done.stderr[-2000:]
            name = pathlib.Path(command[1]).name
            print(f"{name:20} {'failed' if done.returncode else 'ok'}  {said}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
