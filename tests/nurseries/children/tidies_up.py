"""A child that needs a while to stop: it says so, waits for a word, and only then ends."""

import trio

from triolet.nurseries.processes.child import ChildFds, run_child


async def main(fds: ChildFds) -> None:
    fds.control.send(b"ready")
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            fds.control.send(b"stopping")
            await trio.lowlevel.wait_readable(fds.control)


if __name__ == "__main__":
    run_child(main)
