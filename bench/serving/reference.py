"""Reference of offline throughput: a process that runs transformers, and what is asked of it.

Questions and answers are lines of JSON over its stdin and stdout (`transformers_process` answers);
the process dies with the block that opened it. This module does not import torch.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

MODULE = "triolet.bench.serving.transformers_process"
# Importing torch and transformers takes up to half a minute on a busy machine.
START_S = 120.0
# The longest batch that we measure takes it half a minute; with less than this nobody compares.
RUN_S = 1800.0


@attrs.frozen(kw_only=True)
class ReferenceRun:
    """Run of the reference; `elapsed_s` is of the call alone, `cpu_s` of all threads in it."""

    elapsed_s: float
    cpu_s: float
    output_tokens: int


@attrs.frozen
class ReferenceUnusable(Exception):
    """Reference that cannot be run here; `reason` says why."""

    reason: str

    def __str__(self) -> str:
        return f"transformers cannot be compared with: {self.reason}"


@attrs.define(eq=False)
class Reference:
    """The yardstick. `description` names library and versions, once it is loaded."""

    process: subprocess.Popen[bytes]
    description: str = ""

    async def run(self, prompts: list[list[int]], tokens: int) -> ReferenceRun:
        """Answer a batch, with exactly so many tokens each. Raises `ReferenceUnusable`."""
        answer = await self.ask({"prompts": prompts, "tokens": tokens}, RUN_S)
        return ReferenceRun(**answer)

    async def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a question. Raises `ReferenceUnusable`.

        Cancellation: the thread that waits for the answer ends with the process.
        """
        exchange = partial(_exchange, self.process, json.dumps(question).encode())
        with trio.move_on_after(seconds) as scope:
            line = await trio.to_thread.run_sync(exchange, abandon_on_cancel=True)
        if scope.cancelled_caught:
            raise ReferenceUnusable(f"no answer within {seconds:g} s")
        answer: dict[str, Any] = json.loads(line or b'{"failed": "its process has ended"}')
        if "failed" in answer:
            raise ReferenceUnusable(answer["failed"])
        return answer


def _exchange(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """A line for a line; b"" from a process that has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(question + b"\n")
        process.stdin.flush()
        return process.stdout.readline()
    except BrokenPipeError:
        return b""


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", MODULE]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@asynccontextmanager
async def open_reference(folder: str, *, threads: int) -> AsyncIterator[Reference]:
    """Start it and load the model; `threads` 0: as it chooses. Raises `ReferenceUnusable`."""
    with _start() as process:
        try:
            reference = Reference(process)
            opened = await reference.ask({"folder": folder, "threads": threads}, START_S)
            reference.description = opened["description"]
            yield reference
        finally:
            process.kill()
