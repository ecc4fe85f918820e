"""Programs that embed the runtime, run as their users run them; each leaves nothing behind."""

import os
import pathlib
import re
import secrets
import subprocess
import sys

import pytest
import trio

from ..house import ROOT
from .server import DEADLINE_S, MARK, marked_processes, open_server

pytestmark = pytest.mark.slow

PROGRAMS = pathlib.Path(__file__).parent / "programs"


async def run_program(path: pathlib.Path, *arguments: str) -> tuple[int, str, str]:
    """Run it to its end: exit code, output, errors. Fails if a process of it is left.

    With its processes everything else is gone: abstract sockets, memfds and pipes have no names
    that could outlive them, and an embedded runtime has no run folder.
    """
    mark = secrets.token_hex(8)
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process(
            [sys.executable, str(path), *arguments],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, MARK: mark},
        )
    assert marked_processes(mark) == {}
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_the_example_of_embedding() -> None:
    code, output, errors = await run_program(ROOT / "examples" / "embed.py")
    assert code == 0, errors
    assert errors == ""
    free = re.search(r"(\d+) of (\d+) KV blocks free", output)
    assert free is not None, output
    assert free[1] == free[2] != "0"
    assert output.count("[length]") == output.count("[left]") == 1


async def test_the_example_of_lanes(tmp_path: pathlib.Path) -> None:
    async with open_server(tmp_path, "--executor", "null", "--null-step", "0.02") as server:
        url = server.url.replace("http", "ws") + "/v1/responses"
        code, output, errors = await run_program(ROOT / "examples" / "lanes.py", url)
    assert (code, errors) == (0, "")
    lanes = [line.partition(": ")[0] for line in output.splitlines()]
    assert lanes.count("fox") > 2 < lanes.count("owl")
    first, last = lanes.index("owl"), len(lanes) - 1 - lanes[::-1].index("fox")
    assert first < last, "they come side by side"


async def test_the_blocking_face_answers_two_prompts_and_closes() -> None:
    code, output, errors = await run_program(PROGRAMS / "blocking.py")
    assert code == 0, errors
    assert errors == ""
    first, second, threads = output.splitlines()
    assert (first, second) == ("8 length", "8 length")
    assert threads == "['MainThread']"


async def test_a_main_thread_that_ends_without_close_leaves_nothing() -> None:
    code, output, errors = await run_program(PROGRAMS / "forgets_to_close.py")
    assert (code, output) == (0, "8\n"), errors
    assert errors == ""


async def test_a_main_thread_that_fails_without_close_leaves_nothing() -> None:
    code, _, errors = await run_program(PROGRAMS / "forgets_to_close.py", "fail")
    assert code == 1
    assert errors.splitlines()[-1] == "RuntimeError: the program's own mistake"
