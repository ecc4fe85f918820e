"""A program that is a head: engines of hosts serve under it, here one on the same machine.

python examples/head.py
"""

import pathlib
import socket
import sys
import tempfile
from functools import partial

import trio

import triolet
from triolet import SamplingParams

ADDRESS = "127.0.0.1"  # of this machine, as hosts reach it
TRIOLET = (sys.executable, "-m", "triolet")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.create_server((ADDRESS, 0)) as free:
        key, port = pathlib.Path(folder) / "cluster.key", free.getsockname()[1]
        free.close()
        await trio.run_process([*TRIOLET, "keygen", str(key)], capture_stdout=True)
        # On another machine: triolet engine --join ADDRESS:PORT --key cluster.key --name b
        host = ["engine", "--join", f"{ADDRESS}:{port}", "--key", str(key), "--name", "b"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.run_process, [*TRIOLET, *host], check=False))
            opening = triolet.open_runtime(
                engines=0, join_port=port, advertise=ADDRESS, key=str(key)
            )
            async with opening as runtime:  # with the first engine of a host
                params = SamplingParams(max_tokens=32, seed=1)
                async with runtime.generate("One morning, a quick red fox", params) as stream:
                    async for output in stream:
                        print(output.text, end="", flush=True)
                (engine,) = runtime.health().engines
                print(f"\n[engine {engine.rank} of host {engine.host}]")
            nursery.cancel_scope.cancel()  # SIGTERM for the host, which ends its engines


if __name__ == "__main__":
    trio.run(main)
