"""Pool of ranked processes that stand and fall together: all ready or none, one dead, all down.

It restarts nothing: its owner dies of a lost rank, and the owner's supervisor starts a new pool.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import trio

from ..tasks.service import single_errors_unwrapped, start_service
from .process import LadderTimes, Process, ProcessSpec, run_process
from .process_exit import ProcessDied

T = TypeVar("T")


async def run_process_pool(
    specs: Sequence[ProcessSpec],
    *,
    ready: Callable[[Process], Awaitable[T]],
    ladder: LadderTimes | None = None,
    task_status: trio.TaskStatus[list[tuple[Process, T]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Own one process per spec until the first one dies. They start side by side.

    Starts with `(process, value of ready)` of each spec, in their order, when all are ready. Each
    process has a background task called as its spec. Returns only if every process was asked to
    stop and exited with code 0.

    *Raises* `ProcessDied` of the process that died first, what `ready` raises, or `ServiceEnded` of
    a process's task that was cancelled alone.

    *Cancellation*, and every other end but a death: all get the ladder side by side, so leaving
    takes at most one ladder's time. When one has died the others are killed at once: what they
    have is of no use without it.
    """
    deaths: list[ProcessDied] = []  # at most one per spec, in the order of notice
    spawned: list[Process] = []

    async def noted_ready(process: Process) -> T:
        spawned.append(process)
        return await ready(process)

    async def run_rank(
        spec: ProcessSpec, *, task_status: trio.TaskStatus[tuple[Process, T]]
    ) -> None:
        try:
            await run_process(spec, ready=noted_ready, ladder=ladder, task_status=task_status)
        except ProcessDied as death:
            deaths.append(death)
            for process in spawned:
                process.kill_group()
            raise

    with single_errors_unwrapped():
        try:
            async with trio.open_nursery() as nursery:
                task_status.started(await _start_all(nursery, specs, run_rank))
        except* ProcessDied:
            raise deaths[0] from None


async def _start_all(
    nursery: trio.Nursery,
    specs: Sequence[ProcessSpec],
    run_rank: Callable[..., Awaitable[None]],
) -> list[tuple[Process, T]]:
    started: dict[int, tuple[Process, T]] = {}

    async def start_one(place: int, spec: ProcessSpec) -> None:
        task = await start_service(nursery, partial(run_rank, spec), name=spec.name)
        started[place] = task.value

    async with trio.open_nursery() as starting:
        for place, spec in enumerate(specs):
            starting.start_soon(start_one, place, spec)
    return [started[place] for place in range(len(specs))]
