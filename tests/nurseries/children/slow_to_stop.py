"""A child whose cleanup takes for ever: its own bound ends it."""

import trio

from triolet.nurseries.processes.child import ChildFds, run_child


async def main(fds: ChildFds) -> None:
    fds.control.send(b"ready")
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


if __name__ == "__main__":
    run_child(main, exit_bound_s=0.01)
