"""A child in good order: says that it is ready, and works; it fails as soon as it gets a word."""

import trio

from triolet.nurseries.processes.child import ChildFds, run_child


async def main(fds: ChildFds) -> None:
    fds.control.send(b"ready")
    await trio.lowlevel.wait_readable(fds.control)
    raise ValueError("ordered to fail")


if __name__ == "__main__":
    run_child(main)
