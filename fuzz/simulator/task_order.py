"""Seeded order and clock of trio's tasks; processes that are stopped, or hit by a fault at a step.

trio runs its tasks in batches, in an order drawn from a source of its own. Here that source is one
of ours: the order follows from a seed, tasks of a process that is stopped are kept back until it
goes on, as SIGSTOP would do, and a fault falls between any two steps of a process's tasks.
"""

import math
import select
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random
from typing import Any, Protocol

import trio
import trio.abc


class Steps(Protocol):
    """What is known of a process here; `kernel.SimProcess`."""

    is_stopped: bool
    # How many steps its tasks took; `due` is called when it has taken `due_at`.
    steps: int
    due_at: float
    due: Callable[[], None]
    # Tasks that are kept back while it is stopped.
    held: list[trio.lowlevel.Task]


# Of the process that a task belongs to; none of the root's and of the simulation's own.
PROCESS: ContextVar[Steps | None] = ContextVar("simulated_process", default=None)


class TaskOrder(Random):
    """Takes the place of trio's source of chance."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.batches = 0

    def shuffle(self, batch: MutableSequence[Any]) -> None:
        """Called by trio with all tasks that can run, in the order of their making."""
        self.batches += 1
        if len(batch) > 1:
            draw = self.random
            for i in range(len(batch) - 1, 0, -1):
                j = int(draw() * (i + 1))
                batch[i], batch[j] = batch[j], batch[i]
        kept_back = False
        for task in batch:
            process = task.context.get(PROCESS)
            if process is None:
                continue
            process.steps += 1
            if process.steps >= process.due_at:
                process.due()
            kept_back = kept_back or process.is_stopped
        if kept_back:
            self._keep_back(batch)

    def _keep_back(self, batch: MutableSequence[Any]) -> None:
        runs = []
        for task in batch:
            process = task.context.get(PROCESS)
            if process is not None and process.is_stopped:
                process.held.append(task)
            else:
                runs.append(task)
        batch[:] = runs


class VirtualClock(trio.abc.Clock):
    """Time passes, to the next deadline, when no task can run and no descriptor is ready.

    As a `MockClock` with a threshold of 0, which is read twice a step and looks at a real clock.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._ready = select.poll()

    def start_clock(self) -> None:
        """Called by trio when its loop begins."""
        runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner
        self._ready.register(runner.io_manager._epoll.fileno(), select.POLLIN)
        # Looked into several times a step, by a method in Python; a simulation has none.
        runner.instruments = {}

    def current_time(self) -> float:
        """See `trio.abc.Clock`."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by trio when no task can run."""
        if deadline == math.inf:
            return deadline
        if deadline > self.now and not self._ready.poll(0):
            self.now = deadline
        return 0


class DeadlineChange:
    """In the place of `CancelScope._might_change_registered_deadline`, a generator's function that
    is called three times for each scope: a tenth of all that a simulation took.
    """

    __slots__ = ("scope",)

    def __init__(self, scope: Any) -> None:
        self.scope = scope

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        scope: Any = self.scope
        is_over = scope._cancel_status is None or scope._cancel_called
        old, new = scope._registered_deadline, math.inf if is_over else scope._deadline
        if old != new:
            scope._registered_deadline = new
            deadlines = trio._core._run.GLOBAL_RUN_CONTEXT.runner.deadlines
            if old != math.inf:
                deadlines.remove(old, scope)
            if new != math.inf:
                deadlines.add(new, scope)


def let_go_on(process: Steps) -> None:
    """Run the tasks that were kept back."""
    held, process.held = process.held, []
    trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq.extend(held)


@contextmanager
def seeded_tasks(seed: str) -> Iterator[TaskOrder]:
    """Runs of trio in the block follow the seed. trio's own switch, made for Hypothesis."""
    module: Any = trio._core._run
    before = module._r, module._ALLOW_DETERMINISTIC_SCHEDULING
    scope_type: Any = trio.CancelScope
    change = scope_type._might_change_registered_deadline
    order = TaskOrder(seed)
    module._r, module._ALLOW_DETERMINISTIC_SCHEDULING = order, True
    scope_type._might_change_registered_deadline = lambda scope: DeadlineChange(scope)
    try:
        yield order
    finally:
        module._r, module._ALLOW_DETERMINISTIC_SCHEDULING = before
        scope_type._might_change_registered_deadline = change
