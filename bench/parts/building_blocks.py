"""Measures building blocks of trio: µs of CPU of each, as `calibration` wants them.

    python -m triolet.bench.parts.building_blocks

Each take runs in a process of its own, so that neither the heap nor the tasks of the benchmark that
asks for it count. The blocks take turns of some milliseconds; what is told are medians of them.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import attrs
import trio

from .calibration import Calibration, Take

# Some milliseconds a turn, so that a take is over in half a second and neighbours meet all blocks.
TURNS = 7
REPEATS = 500
CHANNEL_CAPACITY = 64
# A take is over in a second; on a machine that is this busy no figure is worth having.
TAKE_S = 60.0


async def checkpoint(count: int) -> None:
    """One task that is always ready."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def _nothing() -> None:
    pass


async def spawn(count: int) -> None:
    """Tasks that end at once, all in one nursery."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(_nothing)


async def nursery_with_child(count: int) -> None:
    """A nursery for each task."""
    for _ in range(count):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_nothing)


async def channel_hop(count: int) -> None:
    """One task sends, one receives, item by item."""
    sender, receiver = trio.open_memory_channel[int](CHANNEL_CAPACITY)

    async def send() -> None:
        async with sender:
            for number in range(count):
                await sender.send(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        async for _ in receiver:
            pass


async def channel_nowait(count: int) -> None:
    """The same without a checkpoint, in one task."""
    sender, receiver = trio.open_memory_channel[int](CHANNEL_CAPACITY)
    for number in range(count):
        sender.send_nowait(number)
        receiver.receive_nowait()


async def event_wake(count: int) -> None:
    """Two tasks wake each other in turn; a wake is one way."""
    events = [trio.Event(), trio.Event()]

    async def wake_other(own: int) -> None:
        for _ in range(count // 2):
            await events[own].wait()
            events[own] = trio.Event()
            events[1 - own].set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wake_other, 0)
        nursery.start_soon(wake_other, 1)
        events[0].set()


async def cancel_scope(count: int) -> None:
    """Entered and left, without a deadline."""
    for _ in range(count):
        with trio.CancelScope():  # noqa: ASYNC100 - what it costs is the question
            pass


BLOCKS: dict[str, Callable[[int], Awaitable[None]]] = {
    "checkpoint alone": checkpoint,
    "spawn and exit": spawn,
    "nursery with one child": nursery_with_child,
    "channel hop, capacity 64": channel_hop,
    "send_nowait and receive_nowait": channel_nowait,
    "event wake, one way": event_wake,
    "cancel scope": cancel_scope,
}


async def measure(turns: int = TURNS, repeats: int = REPEATS) -> Take:
    """All blocks in turns; the first turn warms up."""
    began_cpu_s, began_wall_s = time.process_time(), time.perf_counter()
    spent_us: dict[str, list[float]] = {name: [] for name in BLOCKS}
    for _ in range(turns + 1):
        for name, run in BLOCKS.items():
            began_s = time.process_time()
            await run(repeats)
            spent_us[name].append((time.process_time() - began_s) / repeats * 1e6)
    share = (time.process_time() - began_cpu_s) / (time.perf_counter() - began_wall_s)
    return Take({name: statistics.median(each[1:]) for name, each in spent_us.items()}, share)


async def take_blocks(calibration: Calibration) -> None:
    """Add a take of here and now."""
    command = [sys.executable, "-m", "triolet.bench.parts.building_blocks"]
    with trio.fail_after(TAKE_S):
        answer = await trio.run_process(command, capture_stdout=True)
    calibration.add(_parse(answer.stdout))


def take_blocks_sync(calibration: Calibration) -> None:
    """The same for a benchmark that is not a task."""
    command = [sys.executable, "-m", "triolet.bench.parts.building_blocks"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TAKE_S)
    calibration.add(_parse(answer.stdout))


def _parse(answer: bytes) -> Take:
    return Take(**json.loads(answer))


if __name__ == "__main__":
    print(json.dumps(attrs.asdict(trio.run(measure))))
