"""Forks, dies, and lets its child tell: the child holds the write end of its own death pipe."""

import os
import signal
import sys
from functools import partial

import trio

from triolet.nurseries.processes.death_watch import monitor_parent


async def watch(control_fd: int, parent_pid: int) -> None:
    death_fd, _leaked_fd = os.pipe()

    def tell(reason: str) -> None:
        os.write(control_fd, reason.encode())

    async with trio.open_nursery() as nursery:
        monitor = partial(monitor_parent, parent_pid=parent_pid, on_gone=tell)
        await nursery.start(monitor, death_fd)
        os.kill(parent_pid, signal.SIGKILL)


def main(control_fd: int) -> None:
    parent_pid = os.getpid()
    if os.fork() == 0:
        trio.run(watch, control_fd, parent_pid)
        os._exit(0)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]))
