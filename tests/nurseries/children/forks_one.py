"""A child with a fork server of its own; it tells the pid of what that has forked."""

import trio

from triolet.nurseries.processes.child import ChildFds, run_child
from triolet.nurseries.processes.fork_server import ForkServer
from triolet.nurseries.processes.process import ProcessSpec, open_process


async def main(fds: ChildFds) -> None:
    async with open_process(ProcessSpec("forks", "obedient", forks=True)) as process:
        server = ForkServer(process)
        await server.wait_warm()
        forked = ProcessSpec("forked", "", spawned=await server.fork())
        async with open_process(forked) as child:
            fds.control.send(str(child.pid).encode())
            await trio.sleep_forever()


if __name__ == "__main__":
    run_child(main)
