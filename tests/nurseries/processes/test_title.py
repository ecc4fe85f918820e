"""A process is called as it says, and its environment can still be read."""

import os
import subprocess
import sys

from triolet.nurseries.processes.title import PREFIX

PROGRAM = """
import pathlib
from triolet.nurseries.processes.title import set_title
set_title("engine 0")
for name in ("cmdline", "comm", "environ"):
    print(pathlib.Path("/proc/self", name).read_bytes())
"""


def test_title_and_environment() -> None:
    environment = {**os.environ, "MARKED": "so"}
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=60
    )
    command, name, environ = shown.stdout.splitlines()
    assert command.startswith(f"b'{PREFIX}engine 0\\x00")
    assert PREFIX.strip() in name
    assert "\\x00MARKED=so\\x00" in environ
