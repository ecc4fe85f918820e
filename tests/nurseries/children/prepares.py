"""Tells what its fork server has prepared, and in which process that was."""

import os

import trio

from triolet.nurseries.processes.child import ChildFds, run_child

PREPARED: list[str] = []


def prepare(text: bytes) -> None:
    PREPARED.append(f"{text.decode()} in {os.getpid()}")


async def main(fds: ChildFds) -> None:
    fds.control.send(", ".join(PREPARED).encode() or b"nothing")
    await trio.sleep_forever()


if __name__ == "__main__":
    run_child(main, prepare=prepare)
