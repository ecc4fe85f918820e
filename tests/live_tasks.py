"""Look-up of living tasks by name, in the tree of this run or in a snapshot of any."""

from collections.abc import Iterator

import trio

from triolet.nurseries.tasks.background import BackgroundTask, background_task_of
from triolet.nurseries.tasks.task_tree import TaskNode


def find_tasks(node: TaskNode, name: str) -> list[TaskNode]:
    """All nodes called `name` in a snapshot, outermost first."""
    found = [node] if node.name == name else []
    return found + [match for child in node.children for match in find_tasks(child, name)]


def find_background_task(name: str) -> BackgroundTask:
    """The handle of the one living background task called `name`."""
    (handle,) = find_background_tasks(name)
    return handle


def find_background_tasks(name: str | None = None) -> list[BackgroundTask]:
    """The handles of all living background tasks, or of those called `name`, outermost first."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    handles = map(background_task_of, _live_tasks(root))
    return [handle for handle in handles if handle is not None and name in (None, handle.name)]


def _live_tasks(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda child: child.name):
            yield from _live_tasks(child)
