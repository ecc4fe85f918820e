"""The cancellation table: every background task by name, where it lives, and how it is cancelled.

One list for `test_table`, which runs each row and holds the list against the live tree of a real
server, and for `python -m tests.cancellation`, which prints what came of each.
"""

import pathlib
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from triolet.nurseries.processes.boot import EXIT_FAILED
from triolet.nurseries.processes.child import DEATH_MONITOR
from triolet.nurseries.tasks.background import CancelledBeforeStart
from triolet.tests.cancellation import requests
from triolet.tests.cancellation.named_steps import (
    DEADLINE_S,
    INVARIANTS,
    STEPS_MAX,
    CancelAtStep,
    Ending,
    MainEnded,
    cancel_at_each_step,
    with_its_name,
)
from triolet.tests.cancellation.requests import EXCHANGES, open_request_bed, tasks_of
from triolet.tests.cancellation.uses import (
    ENGINE,
    FRONTEND,
    use_bed,
    use_engine,
    use_forms,
    use_frontend,
    use_root,
    use_worker,
)
from triolet.tests.leaks import check_no_leaks
from triolet.tests.runtime.model_folders import CHAT_TEMPLATE, byte_level_tokenizer, write_folder

# Where a use spawns real processes, a row costs a second for each step.
STEPS_WITH_PROCESSES = 10
SIZES = '{"vocab_size": 320, "max_position_embeddings": 512, "eos_token_id": 1}'


@attrs.frozen
class Row:
    """`run` cancels the task at its checkpoints, `every` one or some, and returns their number.

    `where` is the kind of process; `invariants` is what holds after each cancellation.
    """

    name: str
    where: str
    run: Callable[..., Awaitable[int]]
    invariants: str = INVARIANTS


def write_null_folder(folder: pathlib.Path) -> pathlib.Path:
    """A tokenizer, and sizes for the null executor."""
    write_folder(folder, byte_level_tokenizer(), chat_template=CHAT_TEMPLATE)
    (folder / "config.json").write_text(SIZES)
    return folder


FolderUse = Callable[[pathlib.Path, CancelAtStep], Awaitable[object]]


# What is checked after each cancellation of a task of a request.
OF_REQUESTS = "client sees an end, blocks free, no request state, no task left, other tokens exact"


async def _in_exchanges(kind: str, *, every: bool) -> int:
    """Over all exchanges in which there is such a task."""
    reached = 0
    with tempfile.TemporaryDirectory() as path, check_no_leaks(), trio.fail_after(DEADLINE_S):
        folder = write_null_folder(pathlib.Path(path))
        for exchange in EXCHANGES.values():
            async with open_request_bed(folder) as bed:
                if kind in await tasks_of(bed, exchange):
                    steps = await requests.cancel_at_each_step(bed, exchange, kind, every=every)
                    assert steps > 0, "an exchange needs every one of its tasks"
                    reached += steps
    return reached


async def _in_folder(
    name: str,
    use: FolderUse,
    *,
    end: int = 0,
    ending: Ending | None = with_its_name,
    steps_max: int = STEPS_MAX,
    every: bool,
) -> int:
    with tempfile.TemporaryDirectory() as path:
        folder = write_null_folder(pathlib.Path(path))
        return await cancel_at_each_step(
            name, partial(use, folder), end=end, ending=ending, steps_max=steps_max, every=every
        )


def _failed(error: Exception, name: str) -> bool:
    """Without its death monitor no child may live."""
    return repr(error) in (repr(MainEnded(EXIT_FAILED)), repr(CancelledBeforeStart(name)))


# Those that end otherwise. Booting needs no progress reports: what is untold is told at its end.
# An operator's question that is not answered is the asker's matter, a lost check begins anew.
ENDINGS: dict[str, Ending | None] = {
    DEATH_MONITOR: _failed,
    "progress": None,
    "control-call": None,
    "tree-request": None,
    "form-check": None,
}


# Tasks of a root that are of spares, or have such tasks below them; all others live in a tree of
# half as many processes.
HAVE_SPARES = frozenset({
    "engines", "frontends", "spare-engine-0", "spare-frontend-0", "fork-server-engine",
    "fork-server-frontend",
})  # fmt: skip


def _child(name: str, where: str, use: FolderUse, steps_max: int = STEPS_MAX) -> Row:
    ending = ENDINGS.get(name, with_its_name)
    return Row(name, where, partial(_in_folder, name, use, ending=ending, steps_max=steps_max))


def _root(name: str) -> Row:
    ending = ENDINGS.get(name, with_its_name)
    use = partial(use_root, spares=int(name in HAVE_SPARES))
    run = partial(cancel_at_each_step, name, use, ending=ending, steps_max=STEPS_WITH_PROCESSES)
    return Row(name, "root", run)


def _on_bed(name: str, where: str, end: int) -> Row:
    return Row(name, f"{where}, streaming", partial(_in_folder, name, use_bed, end=end))


ROOT_TASKS = (
    "log-writer", "signals", "reaper", "control-server", "watch", "engines", "engine-0",
    "frontends", "frontend-0", "accept", "control-call", "tree-request", "spare-engine-0",
    "spare-frontend-0", "fork-server-engine", "fork-server-frontend", "forms", "forms-0",
)  # fmt: skip
FRONTEND_TASKS = (
    DEATH_MONITOR, "log-writer", "link-deadlines", "output-socket-thread", "input-socket-thread",
    "output-handler", "replay-deadlines", "connections", "responses", "load-reports",
    "engines-changed", "control", "counters", "journal-sync", "watched", "viewers", "keep-alive",
    "throughput-log", "form-checks", "form-sender", "adopted-forms",
)  # fmt: skip
ENGINE_TASKS = (
    DEATH_MONITOR, "link-deadlines", "output-socket-thread", "input-socket-thread", "progress",
    "executor", "worker-pool", "worker-0", "spare-worker-0", "fork-server-worker", "input-handler",
    "orphan-watch", "statistics", "utilities", "grammar-compiler", "step-deadline", "step-loop",
    "control", "tree-request", "watched", "kv-events", "kv-events-replay",
)  # fmt: skip
FORM_TASKS = (DEATH_MONITOR, "control", "watched", "form-link", "form-check")
WORKER_TASKS = (DEATH_MONITOR, "control", "step-loop")
# Over memory an `output-socket-thread` sleeps all the time; `statistics` may, between its first
# report and a tenth of a second later.
STREAMING_TASKS = (
    ("input-handler", "engine", ENGINE),
    ("step-loop", "engine", ENGINE),
    ("orphan-watch", "engine", ENGINE),
    ("utilities", "engine", ENGINE),
    ("grammar-compiler", "engine", ENGINE),
    ("input-socket-thread", "engine", ENGINE),
    ("output-handler", "frontend", FRONTEND),
    ("input-socket-thread", "frontend", FRONTEND),
    ("link-deadlines", "frontend", FRONTEND),
)

REQUEST_TASKS = (
    "connection", "connection-reader", "response", "completion", "lane", "socket-writer",
    "socket-ping", "socket-retirement",
)  # fmt: skip

ROWS: tuple[Row, ...] = (
    *(_root(name) for name in ROOT_TASKS),
    *(_child(name, "frontend", use_frontend) for name in FRONTEND_TASKS),
    *(_child(name, "engine", use_engine, STEPS_WITH_PROCESSES) for name in ENGINE_TASKS),
    *(_child(name, "worker", use_worker) for name in WORKER_TASKS),
    *(_child(name, "forms", use_forms) for name in FORM_TASKS),
    *(_on_bed(name, where, end) for name, where, end in STREAMING_TASKS),
    *(
        Row(kind, "frontend, request", partial(_in_exchanges, kind), OF_REQUESTS)
        for kind in REQUEST_TASKS
    ),
)
