"""A child that has started a thread when it is imported."""

import threading

import trio

from triolet.nurseries.processes.child import ChildFds, run_child


async def main(fds: ChildFds) -> None:
    await trio.sleep_forever()


if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    run_child(main)
