"""A child in good order: says that it is ready, then works until it is told to stop."""

import trio

from triolet.nurseries.processes.child import ChildFds, run_child


async def main(fds: ChildFds) -> None:
    fds.control.send(b"ready")
    await trio.sleep_forever()


if __name__ == "__main__":
    run_child(main)
