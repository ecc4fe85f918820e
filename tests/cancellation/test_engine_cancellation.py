"""Each background task of an engine and of a frontend, cancelled by name: never a silent hang.

On the in-process bed: idle, and in mid-stream after each step the task takes. The bed must end with
`ServiceEnded` of that task, whatever the caller was waiting for, and leave nothing: no task, no
thread, no descriptor; what the engine held goes with it.
"""

import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from triolet.engine.messages import Utility
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.bed import Bed, open_bed
from triolet.nurseries.background import BackgroundTask
from triolet.nurseries.service import ServiceEnded
from triolet.nurseries.task_tree import find_background_tasks
from triolet.tests.contracts.engines import write_sizes
from triolet.tests.leaks import check_no_leaks
from triolet.tests.runtime.model_folders import byte_level_tokenizer, write_folder

# (which end, task). The frontend's tasks are further out in the tree than the engine's.
ENGINE, FRONTEND = -1, 0
TASKS = [
    (ENGINE, "input-handler"),
    (ENGINE, "step-loop"),
    (ENGINE, "orphan-watch"),
    (ENGINE, "utilities"),
    (ENGINE, "input-socket-thread"),
    (ENGINE, "output-socket-thread"),
    (FRONTEND, "output-handler"),
    (FRONTEND, "stats-updater"),
    (FRONTEND, "input-socket-thread"),
    (FRONTEND, "output-socket-thread"),
]
# Over memory it keeps the links' deadlines only, and there may be none.
MAY_SLEEP = "output-socket-thread"
IDS = [("engine " if end == ENGINE else "frontend ") + name for end, name in TASKS]
each_task = pytest.mark.parametrize(("end", "name"), TASKS, ids=IDS)
PARAMS = SamplingParams(max_tokens=6, seed=7, ignore_eos=True)
DEADLINE_S = 30.0
# Of one task in one stream; the loops end before.
STEPS_MAX = 200


@pytest.fixture(scope="session")
def null_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A tokenizer, and sizes for the null executor."""
    folder = write_folder(tmp_path_factory.mktemp("null"), byte_level_tokenizer())
    return write_sizes(folder)


def find(end: int, name: str) -> BackgroundTask:
    """The task of that name at that end."""
    found = find_background_tasks(name)
    assert found, name
    return found[end]


class StepsOf(trio.abc.Instrument):
    """Cancels one background task when it has yielded n times from now on."""

    def __init__(self, handle: BackgroundTask, n: int) -> None:
        self.handle, self.steps_left = handle, n

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.handle.task:
            self.steps_left -= 1
            if self.steps_left == 0:
                self.handle.cancel("the step of this test")


@contextmanager
def cancelled_at(handle: BackgroundTask, n: int) -> Iterator[StepsOf]:
    instrument = StepsOf(handle, n)
    trio.lowlevel.add_instrument(instrument)
    try:
        yield instrument
    finally:
        trio.lowlevel.remove_instrument(instrument)


def check_nothing_runs() -> None:
    """Every nursery was left, so nobody is there any more."""
    assert find_background_tasks() == []


async def use(bed: Bed) -> None:
    """All that a frontend does: streams, aborts, a lost link, questions."""
    (peer,) = bed.client.balancer.engines
    async with bed.frontend.generate("hello world", PARAMS) as stream:
        await stream.__anext__()
        await bed.client.call_utility(peer, Utility.TASK_TREE)
        bed.hub.links.handle_broken(peer, 1, "the test breaks it")
        await stream.collect()
    async with bed.frontend.generate("hello", PARAMS) as stream:
        await stream.__anext__()
    await bed.wait_quiet()


async def test_uncancelled_the_use_is_whole(null_folder: pathlib.Path) -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_bed(null_folder) as bed:
            await use(bed)
            assert bed.client.ledger.in_flight(bed.client.balancer.engines[0]) == 0
    check_nothing_runs()


@each_task
async def test_cancelled_idle(end: int, name: str, null_folder: pathlib.Path) -> None:
    async def idle() -> None:
        async with open_bed(null_folder):
            find(end, name).cancel("the test cancels it idle")
            await trio.sleep_forever()

    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.raises(ServiceEnded, match=name):
        await idle()
    check_nothing_runs()


async def _use_cancelled_at(folder: pathlib.Path, end: int, name: str, n: int) -> bool:
    """Whether the n-th step was reached; a use that was not over by then failed with its cause."""
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        try:
            async with open_bed(folder) as bed:
                with cancelled_at(find(end, name), n) as steps:
                    await use(bed)
            return steps.steps_left <= 0
        except ServiceEnded as ended:
            if ended.service != name:
                raise
            return True


@pytest.mark.slow
@each_task
async def test_cancelled_in_mid_stream_at_each_step(
    end: int, name: str, null_folder: pathlib.Path
) -> None:
    for n in range(1, STEPS_MAX):
        reached = await _use_cancelled_at(null_folder, end, name, n)
        check_nothing_runs()
        if not reached:
            assert n > 1 or name == MAY_SLEEP, "the use needs every one of these tasks"
            return
    pytest.fail("the use never came to its end")
