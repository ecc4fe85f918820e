"""Server with the null executor, which the benchmarks of frontends press from outside."""

import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence

import trio

LOOK_S = 0.1


def run_beside_server(
    port: int, step_s: float, options: Sequence[str], run: Callable[[int], Awaitable[None]]
) -> None:
    """Run `run(pid of the root)` beside a server, which is stopped afterwards."""
    command = [sys.executable, "-m", "triolet", "serve", "--port", str(port)]
    command += ["--executor", "null", "--null-step", str(step_s), *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            trio.run(run, server.pid)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


async def wait_ready(port: int, path: str = "/ready") -> None:
    """Return when the server says 200 there."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                if b" 200 " in await stream.receive_some(4096):
                    return
        except OSError:
            pass
        await trio.sleep(LOOK_S)
