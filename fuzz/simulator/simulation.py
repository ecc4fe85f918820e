"""Runs simulations: one trio run for each list of events."""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import attrs
import trio
import trio.testing

from ...api import frontend_process
from ...engine import block_names
from ...engine.config import EngineSettings
from ...engine.model.bundled import bundled_model_folder
from ...engine.process import main as engine_main
from ...engine.process.grammar_compiler import GrammarCompiler
from ...nurseries.processes.hang_watch import ProcessLook
from ...nurseries.tasks.service import first_error
from ...runtime.config import RuntimeSettings
from ...runtime.journal import journal
from ...runtime.processes import engine_fleet, frontend_fleet, hang_watcher, root
from ...runtime.text.input_processor import InputProcessor
from .blame import WatchedFleet
from .kernel import SimProcess
from .plan import Event, Setup
from .processes import make_block_names, make_journal, open_watched_journal
from .scene import Scene, Trace
from .task_order import seeded_tasks
from .world import World

Bug = Callable[[], AbstractContextManager[object]]
# Until every planted bug is found.
SMOKE_ROUNDS = 100


@attrs.frozen
class Outcome:
    """What one simulation came to."""

    digest: str
    reached: Counter[str]


@cache
def _folder() -> str:
    return str(bundled_model_folder())


@cache
def _inputs() -> InputProcessor:
    """Of the bundled model, read once; it keeps nothing of the prompts it sees."""
    return InputProcessor.load(RuntimeSettings(engine=EngineSettings(model=_folder())))


@contextmanager
def _one_process(
    look: Callable[[int], ProcessLook], on_rebuilding: Callable[[SimProcess, int], None]
) -> Iterator[None]:
    """What a process does to the whole interpreter is left out, and what threads do is done here.

    No request has a grammar, so that no engine reads a tokenizer.
    """
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (frontend_process, "settle_heap", lambda: None),
        (engine_main, "settle_heap", lambda: None),
        (trio.to_thread, "run_sync", _run_inline),
        (GrammarCompiler, "load", lambda compiler: None),
        (block_names, "BlockNames", make_block_names),
        (journal, "open_mapped_journal", partial(open_watched_journal, on_rebuilding)),
        (frontend_fleet, "create_journal", make_journal),
        (root, "EngineFleet", WatchedFleet),
        (engine_main, "passes_shown", nullcontext),
        (hang_watcher, "look_at_process", look),
        (engine_fleet, "time", SimpleNamespace(monotonic=trio.current_time)),
    )
    with ExitStack() as restored:
        restored.callback(logging.disable, logging.root.manager.disable)
        logging.disable()  # servers that die by the thousand have much to say
        if gc.isenabled():
            gc.disable()  # finalizers run when a simulation is over
            restored.callback(gc.enable)
        for where, name, value in replaced:
            restored.callback(setattr, where, name, vars(where)[name])
            setattr(where, name, value)
        yield


async def _run_inline(sync_fn: Callable[..., Any], *args: Any, **_: Any) -> Any:
    """In the place of `trio.to_thread.run_sync`: a thread would end at a moment of its own."""
    await trio.lowlevel.checkpoint()
    return sync_fn(*args)


def simulate(
    events: Sequence[Event], bug: Bug = nullcontext, *, lines: list[str] | None = None
) -> Outcome:
    """Run one simulation. Raises `Violation` and whatever a part of the runtime raised."""
    seed = next((each.seed for each in events if isinstance(each, Setup)), 0)
    trace = Trace(lines)

    def look(pid: int) -> ProcessLook:
        return scene.kernel.look(pid)

    def on_rebuilding(process: SimProcess, word: int) -> None:
        scene.handle_rebuilding(process, word)

    with bug(), _one_process(look, on_rebuilding), seeded_tasks(f"tasks {seed}") as order:
        scene = Scene(events, _inputs(), _folder(), trace)
        clock = trio.testing.MockClock(autojump_threshold=0)
        try:
            trio.run(World(scene).run, clock=clock)
        except BaseExceptionGroup as group:
            raise first_error(group) from group
    scene.reached["simulation"] = 1
    scene.reached["batches"] = order.batches
    return Outcome(trace.digest(), scene.reached)
