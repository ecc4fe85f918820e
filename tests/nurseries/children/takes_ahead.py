"""A child that finds a child of its own there already; takes it over if `CHILD_OF_CHILD` is set."""

import os

import trio

from triolet.nurseries.processes.child import ChildFds, run_child
from triolet.nurseries.processes.process import ProcessSpec, open_process


async def main(fds: ChildFds) -> None:
    [spawned] = fds.ahead
    if not os.environ["CHILD_OF_CHILD"]:
        fds.control.send(f"{spawned.pid}".encode())
        await trio.sleep_forever()
    async with open_process(ProcessSpec("ahead", "any", spawned=spawned)) as process:
        await trio.lowlevel.wait_readable(process.control)
        fds.control.send(f"{process.pid} {process.control.recv(256).decode()}".encode())
        await trio.sleep_forever()


if __name__ == "__main__":
    run_child(main)
