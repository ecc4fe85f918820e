"""Hang watcher of one child: reads its progress page and /proc, and reports what stands still.

The shell over `HangWatch`. Nothing else in a run declares a process lost that is still there.
"""

from collections.abc import Callable, Mapping
from typing import NoReturn

import trio

from ...nurseries.processes.hang_watch import Hang, HangWatch, ProcessLook
from ...nurseries.processes.progress_page import ProgressPage
from ...nurseries.tasks.background import always_waits_for


async def run_hang_watcher(
    page: ProgressPage,
    *,
    patience_s: float,
    blocked_s: Callable[[], float | None] = lambda: None,
    pids: Callable[[], Mapping[int, int]] = dict,
    on_hang: Callable[[Hang], None],
    look: Callable[..., ProcessLook],
) -> NoReturn:
    """Watch the processes that have a slot on the page; never returns unless cancelled.

    `blocked_s` and `pids` (see `HangWatch`) are asked for at each look, which is `Kernel.look`'s.
    `on_hang` has to kill, and must not raise. Holds nothing.
    """
    always_waits_for("a process that stands still")
    watch = HangWatch(page.slots, patience_s)
    while True:
        watch.blocked_s = blocked_s()
        await trio.sleep(watch.period_s)
        still = watch.handle_page(page.read(), trio.current_time(), pids())
        looks = {slot: look(pid, every_thread=watch.owes(slot)) for slot, pid in still.items()}
        for hang in watch.handle_looks(looks):
            on_hang(hang)
