"""A module whose fork server is killed as soon as it has forked, before it can answer."""

import os
import signal

import trio

from triolet.nurseries.processes.child import ChildFds, run_child

os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGKILL))


async def main(fds: ChildFds) -> None:
    fds.control.send(b"ready")
    await trio.sleep_forever()


if __name__ == "__main__":
    run_child(main)
