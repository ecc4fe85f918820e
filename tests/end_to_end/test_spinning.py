"""Compute threads of a server's workers: how long they spin while they wait for each other."""

import pathlib
import re
import sys

import pytest
import trio

from triolet.engine.kernels.library import SPIN_COUNT, SPIN_VARIABLE

from ..engine.kernels.small_models import needs_kernels
from .server import DEADLINE_S, Server, marked_processes, wait_until

pytestmark = pytest.mark.slow

SERVE = [sys.executable, "-P", "-m", "triolet", "serve", "--port", "0", "--executor"]
# Root, frontend, its spare and fork server; engine and its spare, each with a worker, their fork
# server.
PROCESSES_MIN = 9
# A library of threads prints what it has read when it is loaded, in the process that loads it.
SPIN_LINE = re.compile(rf"{SPIN_VARIABLE} = '(\d+)'")
# Worker and spare worker, at least: those that are forked have what their fork server has loaded.
LOADED_MIN = 2


@pytest.mark.parametrize("executor", [pytest.param("native", marks=needs_kernels), "torch"])
async def test_no_worker_spins_for_long_spares_included(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    monkeypatch.delenv(SPIN_VARIABLE, raising=False)  # set for the tests' own threads
    monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")
    server = Server([*SERVE, executor], tmp_path)
    with trio.fail_after(2 * DEADLINE_S):
        server.spawn()
        try:
            await server.wait_ready()
            await wait_until(
                lambda: len(marked_processes(server.mark)) >= PROCESSES_MIN, "spares are there"
            )
            await wait_until(
                lambda: len(SPIN_LINE.findall(server.log())) >= LOADED_MIN, "kernels are loaded"
            )
            assert set(SPIN_LINE.findall(server.log())) == {SPIN_COUNT}, server.log()
        finally:
            with trio.CancelScope(shield=True):
                await server.stop()
