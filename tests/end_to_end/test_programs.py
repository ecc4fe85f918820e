"""Programs that embed the runtime, run as their users run them; each leaves nothing behind."""

import os
import pathlib
import secrets
import subprocess
import sys

import pytest
import trio

from .server import DEADLINE_S, MARK, marked_processes

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
