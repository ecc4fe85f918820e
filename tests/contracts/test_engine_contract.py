"""The engine contract on the in-process engine and on real processes."""

import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from triolet.tests.contracts.engine import CHECKS, Caller, OpenEngine
from triolet.tests.contracts.engines import inproc_engine, process_engine, write_sizes
from triolet.tests.leaks import check_no_leaks

# All checks one after another, the start of the processes included, on a busy machine.
PROCESSES_S = 240.0


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_engine_contract_in_process(
    check: Callable[[OpenEngine], Awaitable[None]], tmp_path: pathlib.Path
) -> None:
    with check_no_leaks():
        await check(partial(inproc_engine, write_sizes(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
async def test_engine_contract_on_processes(workers: int, tmp_path: pathlib.Path) -> None:
    """One engine for all checks: what a check leaves behind, the next one trips over."""
    with check_no_leaks(), trio.fail_after(PROCESSES_S):
        async with process_engine(write_sizes(tmp_path), workers) as caller:

            @asynccontextmanager
            async def same_engine() -> AsyncIterator[Caller]:
                yield caller

            for check in CHECKS:
                try:
                    await check(same_engine)
                except BaseException as error:
                    error.add_note(f"in {check.__name__}")
                    raise
