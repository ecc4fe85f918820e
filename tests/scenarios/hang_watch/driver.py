"""Driver of a hang watch: a simulated engine, its workers, and a clock that goes by its looks."""

from collections.abc import Iterator
from typing import Any

import attrs

from triolet.nurseries.processes.hang_watch import Hang, HangWatch, ProcessLook, ProcessState
from triolet.nurseries.processes.progress_page import SlotState

from ..suite import Driver

PATIENCE_S = 60.0


@attrs.define
class Simulated:
    """One process: its slot, and what /proc would say."""

    pid: int
    slot: SlotState = attrs.field(init=False)
    state: ProcessState = ProcessState.ASLEEP
    cpu_s: float = 0.0
    runs: int = 0

    def __attrs_post_init__(self) -> None:
        self.slot = SlotState(pid=self.pid)

    def show(self, **changes: Any) -> None:
        """Write into its slot, for which it runs."""
        self.slot = attrs.evolve(self.slot, **changes)
        self.run(0.0)

    def run(self, cpu_s: float) -> None:
        """Compute for so long."""
        self.cpu_s += cpu_s
        self.runs += 1

    def look(self) -> ProcessLook:
        """What /proc says."""
        return ProcessLook(self.state, {self.pid: self.cpu_s}, self.runs)


@attrs.define
class HangWatchDriver(Driver):
    """Processes and a watch over them: slot 0 is the engine, the others are its workers."""

    workers: int = 1
    now: float = 100.0
    blocked_s: float | None = None
    watch: HangWatch = attrs.field(init=False)
    all: list[Simulated] = attrs.field(init=False)
    hangs: list[Hang] = attrs.field(factory=list)
    pids: dict[int, int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.watch = HangWatch(1 + self.workers, PATIENCE_S, self.blocked_s)
        self.all = [Simulated(10 + number) for number in range(1 + self.workers)]
        self.tick()

    def tick(self, late_s: float = 0.0) -> None:
        """Look once."""
        self.now += self.watch.period_s + late_s
        slots = [process.slot for process in self.all]
        still = self.watch.handle_page(slots, self.now, self.pids)
        looks = {number: self.all[number].look() for number in still}
        self.hangs += self.watch.handle_looks(looks)
        self.watch.check_invariants()

    def in_step(self, predicted_s: float = 0.0) -> None:
        """All workers compute step 7."""
        self.all[0].show(step=7, change=1, predicted_s=predicted_s)
        for worker in self.all[1:]:
            worker.show(step=7, change=1, passes=2)
        self.tick()

    # ---- commands

    def begin(self, *, workers: str = "1", blocked: str = "") -> list[str]:
        """An engine with so many workers; a loop that may compute is `blocked` after so long."""
        blocked_s = float(blocked) if blocked else None
        HangWatchDriver.__init__(self, workers=int(workers), blocked_s=blocked_s)
        return []

    def step(self, *, predicted: str = "0") -> list[str]:
        """All workers compute step 7, for which so long is predicted."""
        self.in_step(float(predicted))
        return []

    def becomes(self, number: str, state: str) -> list[str]:
        """What /proc says of a process from now on."""
        self.all[int(number)].state = ProcessState[state.upper()]
        return []

    def shows(self, number: str, **changes: str) -> list[str]:
        """What a process writes into its slot."""
        numbers = {k: float(v) if "." in v else int(v) for k, v in changes.items()}
        self.all[int(number)].show(**numbers)
        return []

    def starts(self, number: str, pid: str) -> list[str]:
        """A process that has not written into the slot of the one before it."""
        self.all[int(number)].pid = self.pids[int(number)] = int(pid)
        return []

    def looks(self, count: str, **cpu_s: str) -> Iterator[str]:
        """So many looks, after each of which processes (p0, p1, …) have computed for so long."""
        for _ in range(int(count)):
            self._look(cpu_s)
        yield from self._found()

    def until_hang(self, **cpu_s: str) -> Iterator[str]:
        """Look until there is one."""
        began = self.now
        while not self.hangs:
            self._look(cpu_s)
            assert self.now - began < 2 * PATIENCE_S, "no hang was found"
        yield f"after {self.now - began:.2f} s"
        yield from self._found()

    def _look(self, cpu_s: dict[str, str]) -> None:
        self.tick()
        for number, seconds in cpu_s.items():
            self.all[int(number[1:])].run(float(seconds))

    def _found(self) -> Iterator[str]:
        yield from [] if self.hangs else ["no hang"]
        for hang in self.hangs:
            fault = "" if hang.is_own_fault else ", by no fault of its own"
            yield f"slot {hang.number} (pid {hang.pid}) {hang.reason}{fault}"
