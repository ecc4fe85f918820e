"""Keeps what was started ahead while it waits for a word, then tells its pids and hands it on."""

import trio

from triolet.nurseries.processes.child import ChildFds, run_child
from triolet.nurseries.processes.kept_process import keep_while


async def main(fds: ChildFds) -> None:
    fds.control.setblocking(False)

    async def receive() -> str:
        fds.control.send(" ".join(str(each.pid) for each in fds.ahead).encode())
        await trio.lowlevel.wait_readable(fds.control)
        return fds.control.recv(100).decode()

    word, ahead = await keep_while(fds.ahead, receive)
    fds.control.send(f"{word} {len(ahead)}".encode())
    await trio.sleep_forever()


if __name__ == "__main__":
    run_child(main)
