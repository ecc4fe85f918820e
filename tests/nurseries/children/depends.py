"""A child that ends of its own child's death, by the signal that it is told."""

import signal

import trio

from triolet.nurseries.processes.child import ChildFds, run_child
from triolet.nurseries.processes.process import Process, ProcessSpec, run_process


async def main(fds: ChildFds) -> None:
    fds.control.send(b"ready")
    await trio.lowlevel.wait_readable(fds.control)
    number = signal.Signals[fds.control.recv(256).decode()]

    async def send(process: Process) -> None:
        await trio.lowlevel.wait_readable(process.control)
        process.send_signal(number)

    await run_process(ProcessSpec("child", "triolet.tests.nurseries.children.deaf"), ready=send)


if __name__ == "__main__":
    run_child(main)
