"""An engine as those see it who watch: rows of its processes, and steps in buckets of time.

The workers are asked for their tasks, as for the live tree; one that does not answer at once is
shown as it was, and as silent.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from ...nurseries.processes.spares import Spares
from ...nurseries.processes.usage import UsageMeter
from ...nurseries.processes.watched import SIGNALS, Buckets, Row, now_ms, spare_rows
from ...nurseries.tasks.task_rows import TaskRows, rows_of, unix_s
from ...nurseries.tasks.task_tree import ProcessTree
from ..messages import EngineStatistics

# A computing worker answers all the same; one that is stopped does not delay the next look.
WORKERS_ANSWER_S = 0.2
# Workers say little, and what is known of them here (CPU, memory, steps) comes with each look. They
# are asked at each so many looks, without steps and with them.
LOOKS, BUSY_LOOKS = 4, 2


@attrs.define(eq=False)
class WatchedEngine:
    """Engine process with its workers; its own CPU and memory are the root's to tell.

    `statistics` are the core's, `ask` gives the trees of its workers.
    """

    place: str
    statistics: Callable[[], EngineStatistics]
    ask: Callable[[], Awaitable[list[ProcessTree]]]
    spares: Spares
    _tasks: TaskRows = attrs.field(factory=TaskRows, init=False)
    _meter: UsageMeter = attrs.field(factory=UsageMeter, init=False)
    _made: Buckets = attrs.field(factory=lambda: Buckets(0), init=False)
    _looks: int = attrs.field(default=0, init=False)
    _step_asked: int = attrs.field(default=-1, init=False)
    # By place: workers as they answered last.
    _workers: dict[str, Row] = attrs.field(factory=dict, init=False)

    def begin(self) -> None:
        """Count steps from here."""
        self._looks = 0
        self._made = Buckets(self.statistics().step)

    async def look(self) -> list[Row]:
        """The rows of this moment."""
        statistics = self.statistics()
        if self._looks % (LOOKS if statistics.step == self._step_asked else BUSY_LOOKS) == 0:
            self._step_asked = statistics.step
            await self._ask_workers()
        self._looks += 1
        facts = {
            "running": statistics.running,
            "waiting": statistics.waiting,
            "kv_blocks": statistics.kv_blocks,
            "kv_blocks_free": statistics.kv_blocks_free,
            "step": statistics.step,
            "worker_restarts": statistics.worker_restarts,
        }
        own = {"place": self.place, "pid": os.getpid(), "facts": facts}
        spares = spare_rows(self.spares.trees(), self.place)
        return [
            own | {"tasks": self._tasks.look()},
            *self._meter.add_usage([*self._workers.values(), *spares], trio.current_time()),
        ]

    async def _ask_workers(self) -> None:
        trees: list[ProcessTree] = []
        with trio.move_on_after(WORKERS_ANSWER_S):
            trees = await self.ask()
        answered = {f"{self.place} {tree.name}": tree for tree in trees}
        silent = {
            place: row | {"state": "silent"}
            for place, row in self._workers.items()
            if place not in answered
        }
        self._workers = silent | {
            place: {
                "place": place,
                "parent": self.place,
                "role": "worker",
                "pid": tree.pid,
                "state": "ready",
                "facts": dict(tree.facts),
                "tasks": [] if tree.tasks is None else rows_of(tree.tasks, unix_s()),
                "can": SIGNALS,
            }
            for place, tree in answered.items()
        }

    def sample(self) -> bool:
        """A bucket of time ends; whether steps are made."""
        statistics = self.statistics()
        self._made.sample(statistics.step)
        return bool(statistics.running)

    def series(self, *, is_whole: bool) -> dict[str, Any]:
        """Steps in each bucket since the last call, if there were any."""
        counts = self._made.take()
        if not any(counts):
            return {}
        return {"steps": [{"place": self.place, "t": now_ms(), "counts": counts}]}
