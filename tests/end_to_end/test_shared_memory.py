"""Weights exist once, however many engines; spare workers wait, and nothing outlives its owner."""

import os
import pathlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

import triolet
from triolet.engine.kernels.library import native_fault
from triolet.engine.model.bundled import bundled_model_folder
from triolet.nurseries.processes.death_watch import wait_process_gone
from triolet.nurseries.processes.orphans import child_pids

from ..engine.kernels.test_shared_memory import needs_huge_pages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(native_fault()), reason="no compiler, no kernels"),
    needs_huge_pages,
]
DEADLINE_S = 60.0
POLL_S = 0.02
WEIGHTS = "/memfd:triolet-weights"
PROMPT = triolet.SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


def weights_pss(pid: int) -> int:
    """KiB of the weights that count for this process; 0 if it has not read any."""
    total, ours = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            ours = WEIGHTS in line
        elif ours and words[0] == "Pss:":
            total += int(words[1])
    return total


def memory_inodes(worker: int) -> set[str]:
    """Of the memfds for weights, keys and values that the process has mapped, if it lives."""
    try:
        lines = pathlib.Path(f"/proc/{worker}/maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    names = (WEIGHTS, "/memfd:triolet-cache")
    return {line.split()[4] for line in lines if any(name in line for name in names)}


def engines() -> list[int]:
    """The children of this process that have workers."""
    return [pid for pid in child_pids(os.getpid()) if child_pids(pid)]


def is_spare(pid: int) -> bool:
    """By its title: a process that is about to become the fork server has none of these yet."""
    try:
        return b"worker, waiting" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def workers_and_spares(engine: int) -> tuple[list[int], list[int]]:
    children = child_pids(engine)
    workers = [pid for pid in children if memory_inodes(pid)]
    return workers, [pid for pid in children if pid not in workers and is_spare(pid)]


async def wait_whole(count: int) -> dict[int, tuple[int, int]]:
    """{engine: (worker, spare)}, once each has both."""
    while True:
        found = {engine: workers_and_spares(engine) for engine in engines()}
        if len(found) == count and all(len(w) == len(s) == 1 for w, s in found.values()):
            return {engine: (w[0], s[0]) for engine, (w, s) in found.items()}
        await trio.sleep(POLL_S)


async def wait_gone(pidfds: list[int]) -> None:
    for pidfd in pidfds:
        await wait_process_gone(pidfd)
        os.close(pidfd)


@asynccontextmanager
async def open_engines(count: int) -> AsyncIterator[triolet.Runtime]:
    runtime = triolet.open_runtime(
        str(bundled_model_folder()), engines=count, spare_engines=0, executor="native", kv_blocks=64
    )
    with trio.fail_after(DEADLINE_S):
        async with runtime as opened:
            yield opened


async def text_of(runtime: triolet.Runtime) -> str:
    text = ""
    async with runtime.generate("Once upon a time", PROMPT) as stream:
        async for output in stream:
            text += output.text
    return text


async def test_four_engines_have_the_weights_of_one() -> None:
    async with open_engines(1) as runtime:
        text = await text_of(runtime)
        [(worker, _)] = (await wait_whole(1)).values()
        alone = weights_pss(worker)
    async with open_engines(4) as runtime:
        workers = [worker for worker, _ in (await wait_whole(4)).values()]
        while not all(weights_pss(worker) for worker in workers):  # each has computed
            async with trio.open_nursery() as nursery:
                for _ in workers:
                    nursery.start_soon(text_of, runtime)
        together = sum(weights_pss(worker) for worker in workers)
        assert await text_of(runtime) == text
    assert alone > 0
    assert together <= 1.15 * alone


async def test_spares_and_memory_outlive_who_is_killed() -> None:
    """A spare disturbs nobody; memory is for the next worker, and for the next engine."""
    async with open_engines(1) as runtime:
        [(engine, (worker, spare))] = (await wait_whole(1)).items()
        text, inodes = await text_of(runtime), memory_inodes(worker)
        assert len(inodes) == 2
        pidfd = os.pidfd_open(spare)
        os.kill(spare, signal.SIGKILL)
        await wait_gone([pidfd])
        assert await text_of(runtime) == text
        [(same_engine, (same_worker, other))] = (await wait_whole(1)).items()
        assert (same_engine, same_worker) == (engine, worker)
        assert other != spare

        os.kill(worker, signal.SIGKILL)
        assert await text_of(runtime) == text
        assert workers_and_spares(engine)[0] == [other]
        assert memory_inodes(other) == inodes
        [(same_engine, (successor, another))] = (await wait_whole(1)).items()
        assert (same_engine, successor) == (engine, other)
        assert another not in (worker, spare, other)

        pidfds = [os.pidfd_open(pid) for pid in (successor, another)]
        os.kill(engine, signal.SIGKILL)
        await wait_gone(pidfds)
        [(_, (last, _))] = (await wait_whole(1)).items()
        assert memory_inodes(last) == inodes
        assert await text_of(runtime) == text
