"""A child that is a parent itself: opens two children and tells their pids."""

import os

import trio

from triolet.nurseries.processes.child import ChildFds, run_child
from triolet.nurseries.processes.process import ProcessSpec, open_process


async def main(fds: ChildFds) -> None:
    module = os.environ["CHILD_OF_CHILD"]
    async with (
        open_process(ProcessSpec("first", module)) as first,
        open_process(ProcessSpec("second", module)) as second,
    ):
        for process in (first, second):
            await trio.lowlevel.wait_readable(process.control)
        fds.control.send(f"{first.pid} {second.pid}".encode())
        await trio.sleep_forever()


if __name__ == "__main__":
    run_child(main)
