"""A child whose main function raises as soon as it is told anything."""

import trio

from triolet.nurseries.processes.child import ChildFds, run_child


async def main(fds: ChildFds) -> None:
    fds.control.send(b"ready")
    await trio.lowlevel.wait_readable(fds.control)
    raise ValueError("told to fail")


if __name__ == "__main__":
    run_child(main)
