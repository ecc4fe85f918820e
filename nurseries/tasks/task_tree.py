"""Live tree of tasks and processes, as data: what runs, what it waits for, since when.

A snapshot is taken by walking trio's nurseries; nothing is instrumented and nothing kept, so a
task costs nothing until it is looked at. Snapshots are plain values that may cross a wire.

A task's scopes are those that it opened itself, its handle's included; what its starter opened is
shown there. So a task without a note ends with the task above it.
"""

import enum
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import trio

from .background import background_task_of, wait_of

# Trio's one task of its own in every run; it says nothing of ours.
_TRIOS_OWN = "<TrioToken.run_sync_soon task>"
# Trio's name for a task without one: the function, dotted. Ours are words, and have no dots.
_UNNAMED = re.compile(r"[\w<>]+(\.[\w<>]+)+")
# More siblings of one kind than this are shown as one line. Pulled out of the air: two engines or
# four workers are worth a line each, a hundred requests are not.
SIBLINGS_SHOWN_MAX = 4
# A shorter wait would be shown as 0.0 s; it has just begun, or it is not known since when.
SINCE_SHOWN_S = 0.05


class TaskKind(enum.StrEnum):
    """When a task ends, if nothing else ends it."""

    # Ends with the task that started it; it has no handle.
    PART = "part"
    # The same, or alone, through its handle.
    BACKGROUND = "background"
    # When those who use it are done; a cancellation from above does not reach it before.
    SERVICE = "service"


@attrs.frozen
class TaskNode:
    """A task at the moment of the snapshot.

    `state` is "running" (it took the snapshot), "waiting" (it has said for what) or "parked".
    `since_s` is how long the wait has lasted, in seconds of trio's clock; 0 if not waiting, or if
    that is not known. `deadline_s` is the earliest of its scopes' deadlines, in seconds from now,
    and `cancelled` the reason of one that was cancelled.
    """

    name: str
    state: str
    waiting_for: str | None = None
    since_s: float = 0.0
    children: list["TaskNode"] = attrs.field(factory=list)
    kind: TaskKind = TaskKind.PART
    deadline_s: float | None = None
    cancelled: str | None = None


@attrs.frozen
class ProcessTree:
    """A process: its account of itself, its tasks (None: not asked) and its child processes."""

    name: str
    pid: int
    facts: Mapping[str, str | int | float] = attrs.field(factory=dict)
    tasks: TaskNode | None = None
    processes: list["ProcessTree"] = attrs.field(factory=list)


def task_tree() -> TaskNode:
    """Snapshot of every task of this trio run. Raises `RuntimeError` outside of trio."""
    root = trio.lowlevel.current_root_task()
    if root is None:
        raise RuntimeError("the trio run has not begun yet")
    return _node(root, trio.current_time())


def render_tree(tree: ProcessTree) -> list[str]:
    """The tree as lines of plain text, for people.

    Siblings of one kind are folded: `request × 128`. Tasks without a name are helpers of the
    task that started them, and are shown as part of it.
    """
    facts = "".join(f"  {key} {value}" for key, value in tree.facts.items())
    tasks = TaskNode("", "parked") if tree.tasks is None else with_helpers_folded(tree.tasks)
    head = f"{tree.name} (pid {tree.pid}){facts}{_doing(tasks)}"
    blocks = [render_tree(process) for process in tree.processes]
    return [head, *_branches([*_task_blocks(tasks.children), *blocks])]


def is_helper(task: TaskNode | trio.lowlevel.Task) -> bool:
    """Whether it has no name of its own, but that of its function."""
    return "." in task.name and _UNNAMED.fullmatch(task.name) is not None


def with_helpers_folded(task: TaskNode) -> TaskNode:
    """The tree without helpers, whose waits are those of the tasks that started them."""
    children: list[TaskNode] = []
    for child in map(with_helpers_folded, task.children):
        if not is_helper(child):
            children.append(child)
            continue
        children += child.children
        if task.state == "parked":  # it does through its helper what it does
            task = attrs.evolve(
                task, state=child.state, waiting_for=child.waiting_for, since_s=child.since_s
            )
        if task.deadline_s is None:
            task = attrs.evolve(task, deadline_s=child.deadline_s)
    return attrs.evolve(task, children=children)


def _task_blocks(tasks: list[TaskNode]) -> list[list[str]]:
    counts = Counter(kind_of(task.name) for task in tasks)
    blocks = []
    folded = set()
    for task in tasks:
        kind = kind_of(task.name)
        if counts[kind] <= SIBLINGS_SHOWN_MAX:
            blocks.append([_task_line(task), *_branches(_task_blocks(task.children))])
        elif kind not in folded:
            folded.add(kind)
            blocks.append([f"{kind} × {counts[kind]}"])
    return blocks


def kind_of(name: str) -> str:
    """`worker-3` is a worker and `request 8f3a` is a request: the word before the number or id."""
    return re.sub(r"(-\d+)?( .*)?$", "", name, count=1)


def _task_line(task: TaskNode) -> str:
    return task.name + _doing(task)


def _doing(task: TaskNode) -> str:
    if task.waiting_for is None:
        doing = "" if task.state == "parked" else f"  {task.state}"
    else:
        duration = f" {_duration(task.since_s)}" if task.since_s >= SINCE_SHOWN_S else ""
        doing = f"  waiting{duration} for {task.waiting_for}"
    return doing + "".join(f"  [{note}]" for note in _notes(task))


def _notes(task: TaskNode) -> Iterator[str]:
    if task.cancelled is not None:
        yield f"cancelled: {task.cancelled}"
    if task.deadline_s is not None:
        yield f"deadline in {_duration(task.deadline_s)}"
    if task.kind is TaskKind.SERVICE:
        yield "until its users end"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _branches(blocks: list[list[str]]) -> list[str]:
    lines = []
    for position, (first, *others) in enumerate(blocks):
        last = position == len(blocks) - 1
        lines.append(("└─ " if last else "├─ ") + first)
        lines += [("   " if last else "│  ") + line for line in others]
    return lines


def children_of(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    """The children of all its nurseries, by name."""
    # Trio keeps the children of a nursery in a set; names make the order the same every time.
    for nursery in task.child_nurseries:
        ours = [child for child in nursery.child_tasks if child.name != _TRIOS_OWN]
        yield from sorted(ours, key=lambda child: child.name)


def _node(task: trio.lowlevel.Task, now: float) -> TaskNode:
    children = [_node(child, now) for child in children_of(task)]
    deadline, cancelled = scopes_of(task)
    node = TaskNode(
        task.name,
        "running" if task is trio.lowlevel.current_task() else "parked",
        children=children,
        kind=_kind(task),
        deadline_s=None if deadline == math.inf else max(0.0, deadline - now),
        cancelled=cancelled,
    )
    wait = wait_of(task)
    if wait is None or node.state == "running":
        return node
    since_s = 0.0 if wait.began_s is None else now - wait.began_s
    return attrs.evolve(node, state="waiting", waiting_for=wait.what, since_s=since_s)


def _kind(task: trio.lowlevel.Task) -> TaskKind:
    handle = background_task_of(task)
    if handle is None:
        return TaskKind.PART
    return TaskKind.SERVICE if handle.is_shielded else TaskKind.BACKGROUND


def scopes_of(task: trio.lowlevel.Task) -> tuple[float, str | None]:
    """The earliest deadline of the cancel scopes that `task` itself has opened, on trio's clock
    (`math.inf`: none), and the reason of the innermost one that is cancelled (None: none is).

    Trio tells each task its own deadline only, so trio's record of scopes is read here, and only
    here: to keep one beside it would cost every wait of every task.
    """
    deadline, cancelled = math.inf, None
    status: Any = task._cancel_status
    outside: Any = None if task.parent_nursery is None else task.parent_nursery._cancel_status
    while status is not None and status is not outside:
        scope = status._scope
        if not scope.cancel_called:
            deadline = min(deadline, scope.deadline)
        elif cancelled is None:
            reason = scope._cancel_reason and scope._cancel_reason.reason
            cancelled = reason or "no reason was given"
        status = status.parent
    return deadline, cancelled
