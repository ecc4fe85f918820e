"""Rows of the live task tree, as viewers see it change: folded where it is made, and stable.

`task_tree` is a snapshot of everything; this one is taken twice a second. So siblings of one kind
are one row before they are walked, and a task whose waits are short has the same row each time:
what a task has waited for since less than a second ago has no time, and no deadline.
"""

import math
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import trio

from .background import wait_of
from .task_tree import (
    SIBLINGS_SHOWN_MAX,
    TaskNode,
    children_of,
    is_helper,
    kind_of,
    scopes_of,
    with_helpers_folded,
)

T = TypeVar("T", TaskNode, trio.lowlevel.Task)
# Depth, name, what it waits for (None: it runs, or has not said), since when (Unix milliseconds;
# None: a moment, or not known), how many siblings of this kind the row stands for, and its end: the
# reason for which it was cancelled, or else the deadline of that wait (Unix milliseconds).
TaskRow = tuple[int, str, str | None, int | None, int, str | int | None]
SINCE_SHOWN_S = 1.0
_SINCE_STEP_MS = 100


def rows_of(tree: TaskNode, now_s: float) -> list[TaskRow]:
    """The rows of a snapshot that another process took just now; `now_s` is Unix time."""
    return list(_rows_of(with_helpers_folded(tree).children, 0, now_s))


def _rows_of(tasks: list[TaskNode], depth: int, now_s: float) -> Iterator[TaskRow]:
    for kind, siblings in _by_kind(tasks).items():
        if len(siblings) > SIBLINGS_SHOWN_MAX:
            yield (depth, kind, None, None, len(siblings), None)
            continue
        for task in siblings:
            began_s = ends_s = None
            if task.since_s >= SINCE_SHOWN_S:
                began_s = now_s - task.since_s
                ends_s = None if task.deadline_s is None else now_s + task.deadline_s
            end = task.cancelled or _step_ms(ends_s)
            yield (depth, task.name, task.waiting_for, _step_ms(began_s), 1, end)
            yield from _rows_of(task.children, depth + 1, now_s)


def _by_kind(tasks: Iterable[T]) -> dict[str, list[T]]:
    kinds: dict[str, list[T]] = {}
    for task in tasks:
        kinds.setdefault(kind_of(task.name), []).append(task)
    return kinds


def _step_ms(unix_s: float | None) -> int | None:
    """Two looks at one wait must say the same, though two clocks are read."""
    return None if unix_s is None else round(unix_s * 1000 / _SINCE_STEP_MS) * _SINCE_STEP_MS


def unix_s() -> float:
    """Unix time, for viewers; it may be set back."""
    return time.time()


class TaskRows:
    """Rows of every task of this trio run, top first, each before its children."""

    def __init__(self) -> None:
        self._clock_began_s = unix_s() - trio.current_time()

    def look(self) -> list[TaskRow]:
        """The rows of this moment. A task without a name is part of the one that started it."""
        root = trio.lowlevel.current_root_task()
        assert root is not None, "this is called in a task"
        rows: list[TaskRow] = []
        self._add_children(rows, root, 0, trio.current_time())
        return rows

    def _add_children(
        self, rows: list[TaskRow], task: trio.lowlevel.Task, depth: int, now: float
    ) -> trio.lowlevel.Task | None:
        """Returns a helper that says what its parent waits for, if there is one."""
        named, speaker = list[trio.lowlevel.Task](), None
        for child in children_of(task):
            if is_helper(child):
                speaker = self._add_children(rows, child, depth, now) or speaker
                speaker = child if wait_of(child) is not None else speaker
            else:
                named.append(child)
        for kind, siblings in _by_kind(named).items():
            if len(siblings) > SIBLINGS_SHOWN_MAX:
                rows.append((depth, kind, None, None, len(siblings), None))
                continue
            for child in siblings:
                place = len(rows)
                rows.append((depth, child.name, None, None, 1, None))
                helper = self._add_children(rows, child, depth + 1, now)
                rows[place] = self._row(child, helper, depth, now)
        return speaker

    def _row(
        self,
        task: trio.lowlevel.Task,
        helper: trio.lowlevel.Task | None,
        depth: int,
        now: float,
    ) -> TaskRow:
        wait, (deadline, cancelled) = wait_of(task), scopes_of(task)
        if helper is not None:
            wait = wait or wait_of(helper)
            deadline = scopes_of(helper)[0] if deadline == math.inf else deadline
        if wait is None:
            return (depth, task.name, None, None, 1, cancelled)
        began_s = ends_s = None
        if wait.began_s is not None and now - wait.began_s >= SINCE_SHOWN_S:
            began_s = self._clock_began_s + wait.began_s
            ends_s = None if deadline == math.inf else self._clock_began_s + deadline
        end = cancelled or _step_ms(ends_s)
        return (depth, task.name, wait.what, _step_ms(began_s), 1, end)
