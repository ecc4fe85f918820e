"""Live tree of tasks and processes, as data: what runs, what it waits for, since when.

A snapshot is taken by walking trio's nurseries; nothing is instrumented and nothing kept, so a
task costs nothing until it is looked at. Snapshots are plain values that may cross a wire.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import attrs
import trio

from .background import wait_of

# Trio's one task of its own in every run; it says nothing of ours.
_TRIOS_OWN = "<TrioToken.run_sync_soon task>"
# What trio calls a task without a name: the function, dotted. Ours are words, and have no dots.
_UNNAMED = re.compile(r"[\w<>]+(\.[\w<>]+)+")
# More siblings of one kind than this are shown as one line. Pulled out of the air: two engines or
# four workers are worth a line each, a hundred requests are not.
SIBLINGS_SHOWN_MAX = 4
# A shorter wait would be shown as 0.0 s; it has just begun, or it is not known since when.
SINCE_SHOWN_S = 0.05


@attrs.frozen
class TaskNode:
    """One task at the moment of the snapshot.

    `state` is "running" (it took the snapshot), "waiting" (it has said for what) or "parked".
    `since_s` is how long the wait has lasted, in seconds of trio's clock; 0 if not waiting, or if
    that is not known.
    """

    name: str
    state: str
    waiting_for: str | None = None
    since_s: float = 0.0
    children: list["TaskNode"] = attrs.field(factory=list)


@attrs.frozen
class ProcessTree:
    """One process, what it says of itself, its tasks (None: not asked) and its child processes."""

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
        return "" if task.state == "parked" else f"  {task.state}"
    duration = f" {_duration(task.since_s)}" if task.since_s >= SINCE_SHOWN_S else ""
    return f"  waiting{duration} for {task.waiting_for}"


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
    if task is trio.lowlevel.current_task():
        return TaskNode(task.name, "running", children=children)
    wait = wait_of(task)
    if wait is None:
        return TaskNode(task.name, "parked", children=children)
    since_s = 0.0 if wait.began_s is None else now - wait.began_s
    return TaskNode(task.name, "waiting", wait.what, since_s, children)
