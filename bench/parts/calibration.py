"""Calibration: how much slower this machine is, now, than the one that targets were set on.

    python -m triolet.bench.parts.calibration

What bounds targets in microseconds or requests a second is Python and trio, so building blocks of
trio are measured beside and between the rounds of a benchmark and compared with what they took
there. A *take* is one measurement of all blocks, in a process of its own, so that neither the heap
nor the tasks of the benchmark count; the blocks take turns of some milliseconds. Figures are scaled
by the block that this machine slows down least: how the others were measured there is not on
record, and a mean of all called figures met that their code, on a machine nearly as fast as the
targets', had missed. Scaling knows CPU time only: where neighbours kept processes waiting, rates
are lower still; so it is told what share of a processor a take had.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs
import trio

# {building block: µs of CPU on the machine of the targets}. Medians of the project's reference
# figures of trio ("trio facts", column trio): two cores of a virtual machine, Python 3.11.7, trio
# 0.35.0. Only the names of the rows are on record, so that each block here is our reading of one;
# where the readings differ from theirs, the spread of the blocks shows it.
REFERENCE_US = {
    "checkpoint alone": 2.5,
    "spawn and exit": 5.9,
    "nursery with one child": 13.0,
    "channel hop, capacity 64": 5.2,
    "send_nowait and receive_nowait": 0.21,
    "event wake, one way": 3.5,
    "cancel scope": 3.2,
}


@attrs.frozen
class Take:
    """Measurement: {building block: µs of CPU}, and the share of a processor that it had."""

    cpu_us: Mapping[str, float]
    share: float

    def factor(self) -> float:
        """The geometric mean of the blocks' ratios: how the machine drifts from take to take."""
        ratios = [self.cpu_us[block] / us for block, us in REFERENCE_US.items()]
        return statistics.geometric_mean(ratios)


@attrs.frozen
class Target:
    """Target on the machine of the targets: at most so much, or at least."""

    value: float
    at_least: bool = False

    def verdict(self, raw: float, factor: float) -> str:
        """Text behind the raw figure: as the machine of the targets would have it, and verdicts."""
        sign, bound = ("×", "≥") if self.at_least else ("÷", "≤")
        scaled = raw * factor if self.at_least else raw / factor  # rates grow, costs shrink
        digits = 0 if abs(scaled) >= 100 else 2
        return (
            f"{sign} {factor:.2f} = {scaled:.{digits}f}; target {bound} {self.value:g}:"
            f" raw {self._judge(raw)}, scaled {self._judge(scaled)}"
        )

    def _judge(self, figure: float) -> str:
        is_met = figure >= self.value if self.at_least else figure <= self.value
        return "met" if is_met else "missed"


@attrs.define(eq=False)
class Calibration:
    """The takes around the rounds of one figure."""

    takes: list[Take] = attrs.field(factory=list)

    def take(self) -> None:
        """Add a take of here and now, before, between or after rounds; blocks."""
        command = [sys.executable, "-m", "triolet.bench.parts.calibration"]
        answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TAKE_S)
        self.takes.append(Take(**json.loads(answer.stdout)))

    def factor(self) -> float:
        """This machine's CPU time by that of the targets' machine: of the least slowed block."""
        return min(block_ratios(self.takes).values())

    def describe(self) -> str:
        """Line with the factor, how it drifted, and which blocks differ most."""
        drift = [take.factor() for take in self.takes]
        by_block = block_ratios(self.takes)
        share = statistics.median(take.share for take in self.takes)
        least, most = (
            min(by_block, key=by_block.__getitem__),
            max(by_block, key=by_block.__getitem__),
        )
        return (
            f"calibration: this machine takes at least {self.factor():.2f} × the CPU of the"
            f" targets' one (all blocks {min(drift):.2f} to {max(drift):.2f} in {len(drift)} takes;"
            f" {by_block[least]:.2f} {least} to {by_block[most]:.2f} {most};"
            f" takes had {share * 100:.0f} % of a processor)"
        )


def block_ratios(takes: Sequence[Take]) -> dict[str, float]:
    """{building block: its median ratio over the takes}."""
    return {
        block: statistics.median(take.cpu_us[block] for take in takes) / us
        for block, us in REFERENCE_US.items()
    }


# Repeats for some milliseconds a turn: a take lasts half a second, and neighbours meet all blocks.
TURNS = 7
REPEATS = 500
CHANNEL_CAPACITY = 64
# A take is over in a second; on a machine that is this busy no figure is worth having.
TAKE_S = 60.0


async def checkpoint(count: int) -> None:
    """Run a task that is always ready."""
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
    """Send and receive, item by item, in two tasks."""
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
    """Measure all blocks in turns; the first turn warms up."""
    began_cpu_s, began_wall_s = time.process_time(), time.perf_counter()
    spent_us: dict[str, list[float]] = {name: [] for name in BLOCKS}
    for _ in range(turns + 1):
        for name, run in BLOCKS.items():
            began_s = time.process_time()
            await run(repeats)
            spent_us[name].append((time.process_time() - began_s) / repeats * 1e6)
    share = (time.process_time() - began_cpu_s) / (time.perf_counter() - began_wall_s)
    return Take({name: statistics.median(each[1:]) for name, each in spent_us.items()}, share)


if __name__ == "__main__":
    print(json.dumps(attrs.asdict(trio.run(measure))))
