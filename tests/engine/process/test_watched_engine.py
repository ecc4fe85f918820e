"""An engine that is watched: its rows, its workers' while they answer, and its steps."""

import attrs
import trio
import trio.testing

from triolet.engine.config import EngineSettings
from triolet.engine.messages import EngineStatistics
from triolet.engine.process.executor import TREE_TIMEOUT_S
from triolet.engine.process.main import spare_workers
from triolet.engine.process.watched_engine import BUSY_LOOKS, LOOKS, WatchedEngine
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode

WORKER = ProcessTree(
    "worker 0", 7, {"step": 3}, TaskNode("", "parked", children=[TaskNode("loop", "parked")])
)


@attrs.define(eq=False)
class Core:
    step: int = 5
    answers: bool = True
    asked: int = 0

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(step=self.step, running=2, kv_blocks=8, kv_blocks_free=6)

    async def ask(self) -> list[ProcessTree]:
        self.asked += 1
        await trio.sleep(0 if self.answers else TREE_TIMEOUT_S)
        return [WORKER] if self.answers else []


def engine_of(core: Core) -> WatchedEngine:
    spares = spare_workers(EngineSettings(model=""))
    return WatchedEngine("engine 1", core.statistics, core.ask, spares)


async def test_rows_are_the_engine_and_its_workers() -> None:
    own, worker = await engine_of(Core()).look()
    assert own["place"] == "engine 1"
    assert (own["facts"]["running"], own["facts"]["kv_blocks_free"]) == (2, 6)
    assert (worker["place"], worker["parent"], worker["pid"]) == (
        "engine 1 worker 0",
        "engine 1",
        7,
    )
    assert (worker["facts"], worker["tasks"]) == ({"step": 3}, [(0, "loop", None, None, 1, None)])
    assert worker["state"] == "ready"


async def test_a_worker_that_does_not_answer_is_shown_as_silent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    core = Core()
    engine = engine_of(core)
    await engine.look()
    await engine.look()
    core.answers, core.step = False, 6
    began_s = trio.current_time()
    _, worker = await engine.look()
    assert worker["state"] == "silent"
    assert trio.current_time() - began_s < 0.5


async def test_workers_are_left_asleep_while_no_step_is_made() -> None:
    core = Core()
    engine = engine_of(core)
    for _ in range(LOOKS):
        await engine.look()
    assert core.asked == 1
    for _ in range(LOOKS):
        core.step += 1
        await engine.look()
    assert core.asked == 1 + LOOKS // BUSY_LOOKS


async def test_steps_are_counted_from_the_begin_on() -> None:
    core = Core()
    engine = engine_of(core)
    engine.begin()
    engine.sample()
    assert engine.series(is_whole=True) == {}
    for step in (5, 8, 9):
        core.step = step
        engine.sample()
    (steps,) = engine.series(is_whole=False)["steps"]
    assert (steps["place"], steps["counts"]) == ("engine 1", [0, 3, 1])
