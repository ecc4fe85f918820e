"""Prints what a message costs through the bridge and the channels, against blocking pyzmq.

Run as `python tests/benchmarks/bridge.py [messages]`. A sender process floods one way with 64-byte
payloads over an abstract Unix socket; the receiver, in this process, counts. CPU is the receiver's.
Not a test: nothing is asserted.
"""

import functools
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable

import attrs
import trio
import zmq

from triolet.transports.channel import Peer, PeerUp, Received
from triolet.transports.codec import Codec
from triolet.transports.endpoint import abstract_endpoint
from triolet.transports.zmq_channel import HubChannel, SpokeChannel, open_hub, open_spoke
from triolet.transports.zmq_sockets import BoundSocket, Socket, SocketSettings
from triolet.transports.zmq_thread import Arrival, Burst, SocketThread

PAYLOAD = bytes(64)
HUB, SPOKE = Peer("frontend", 0, 1), Peer("engine", 0, 1)
# A sender of the channel pauses here, as credits would make it: half of the link's fuse.
UNACKNOWLEDGED_MAX = 32768


@attrs.frozen
class Payload:
    """One message of the channel runs."""

    data: bytes


CODEC = Codec(Payload)


@attrs.frozen
class Row:
    """One line of the table."""

    name: str
    messages: int
    seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        rate = self.messages / self.seconds / 1000
        cpu_us = self.cpu_seconds / self.messages * 1e6
        return f"{self.name:<42} {rate:>8.0f} {cpu_us:>10.2f}"


def measure(name: str, messages: int, receive: Callable[[], None]) -> Row:
    """Time and CPU of this process while `receive` runs; it starts at the first message."""
    begin, cpu = time.perf_counter(), time.process_time()
    receive()
    return Row(name, messages, time.perf_counter() - begin, time.process_time() - cpu)


def spawn(sender: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """This file again, as the sender."""
    return subprocess.Popen([sys.executable, __file__, sender, *arguments])


def send_plain(endpoint: str, count: str) -> None:
    """Sender process of the two rows below the channel."""
    context: zmq.Context[Socket] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect(endpoint)
    for _ in range(int(count)):
        socket.send(PAYLOAD)
    socket.close()
    context.term()


def run_blocking(endpoint: str, messages: int) -> Row:
    """The limit: nothing but recv in a loop."""
    context: zmq.Context[Socket] = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.bind(endpoint)
    with spawn("plain", endpoint, str(messages + 1)):
        socket.recv()

        def receive() -> None:
            for _ in range(messages):
                socket.recv()

        row = measure("blocking pyzmq", messages, receive)
    socket.close()
    context.term()
    return row


async def run_thread(endpoint: str, messages: int) -> Row:
    """The owner thread alone: frames arrive in the loop."""
    context: zmq.Context[Socket] = zmq.Context()
    begin = cpu = 0.0
    seen, done = 0, trio.Event()

    def handle(arrival: Arrival) -> None:
        nonlocal seen, begin, cpu
        assert isinstance(arrival, Burst)
        if seen == 0:
            begin, cpu = time.perf_counter(), time.process_time()
        seen += len(arrival.messages)
        if seen == messages + 1:
            done.set()

    held = BoundSocket(context, zmq.PULL, endpoint, SocketSettings())
    thread = SocketThread("bridge", held, handle)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(thread.run, task_status=trio.TASK_STATUS_IGNORED))
        with spawn("plain", endpoint, str(messages + 1)):
            await done.wait()
            row = Row(
                "owner thread, frames in the loop",
                messages,
                time.perf_counter() - begin,
                time.process_time() - cpu,
            )
        nursery.cancel_scope.cancel("measured")
    context.term()
    return row


async def start(nursery: trio.Nursery, channel: HubChannel | SpokeChannel) -> None:
    """Both tasks of a channel."""
    for task in (channel.run_input, channel.run_output):

        async def run(
            task_status: trio.TaskStatus[str], task: Callable[..., object] = task
        ) -> None:
            await task(task_status=task_status)  # type: ignore[misc]  # both are coroutines

        await nursery.start(run)


async def send_channel(input_endpoint: str, output_endpoint: str, count: str) -> None:
    """Sender process of the channel row: a spoke."""
    message = Payload(PAYLOAD)
    async with open_spoke(SPOKE, CODEC, CODEC) as spoke, trio.open_nursery() as nursery:
        await start(nursery, spoke)
        spoke.connect(HUB, input_endpoint, output_endpoint)
        await spoke.receive()
        for number in range(int(count)):
            if number % 256 == 0:
                await trio.lowlevel.checkpoint()
                # Polling, as nothing tells of an acknowledgement; credits would.
                while _behind(spoke):  # noqa: ASYNC110
                    await trio.sleep(0.001)
            spoke.send(HUB, message)
        await trio.sleep_forever()


def _behind(spoke: SpokeChannel) -> bool:
    return spoke.statistics().links[HUB].unacknowledged > UNACKNOWLEDGED_MAX


async def run_channel(endpoint: str, messages: int) -> Row:
    """All of it: numbers, acknowledgements, codec, events."""
    where = (endpoint + "-in", endpoint + "-out")
    async with (
        open_hub(HUB, CODEC, CODEC, input_endpoint=where[0], output_endpoint=where[1]) as hub,
        trio.open_nursery() as nursery,
    ):
        await start(nursery, hub)
        with spawn("channel", *where, str(messages)) as sender:
            events = await hub.receive()
            assert isinstance(events[0], PeerUp)
            begin, cpu, seen = time.perf_counter(), time.process_time(), 0
            while seen < messages:
                seen += sum(isinstance(event, Received) for event in await hub.receive())
            row = Row(
                "channel: link, codec, events",
                messages,
                time.perf_counter() - begin,
                time.process_time() - cpu,
            )
            sender.terminate()
        nursery.cancel_scope.cancel("measured")
    return row


async def run_idle(seconds: float = 2.0) -> str:
    """CPU of a connected hub and spoke that say nothing."""
    async with (
        open_hub(
            HUB,
            CODEC,
            CODEC,
            input_endpoint=abstract_endpoint(secrets.token_hex(8), "b", 0, 1, socket="in"),
            output_endpoint=abstract_endpoint(secrets.token_hex(8), "b", 0, 1, socket="out"),
        ) as hub,
        open_spoke(SPOKE, CODEC, CODEC) as spoke,
        trio.open_nursery() as nursery,
    ):
        await start(nursery, hub)
        await start(nursery, spoke)
        spoke.connect(HUB, *hub.endpoints)
        await hub.receive()
        await spoke.receive()
        hub.send(SPOKE, Payload(PAYLOAD))
        await spoke.receive()
        await trio.sleep(0.1)
        cpu = time.process_time()
        await trio.sleep(seconds)
        used = (time.process_time() - cpu) / seconds
        nursery.cancel_scope.cancel("measured")
    return f"idle hub and spoke: {used:.3%} of a core"


async def run_round_trips(count: int = 2000) -> str:
    """Hub to spoke and back, both in this process and this loop."""
    run_id = secrets.token_hex(8)
    async with (
        open_hub(
            HUB,
            CODEC,
            CODEC,
            input_endpoint=abstract_endpoint(run_id, "b", 0, 1, socket="in"),
            output_endpoint=abstract_endpoint(run_id, "b", 0, 1, socket="out"),
        ) as hub,
        open_spoke(SPOKE, CODEC, CODEC) as spoke,
        trio.open_nursery() as nursery,
    ):
        await start(nursery, hub)
        await start(nursery, spoke)
        spoke.connect(HUB, *hub.endpoints)
        await hub.receive()
        await spoke.receive()
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            hub.send(SPOKE, Payload(PAYLOAD))
            await spoke.receive()
            spoke.send(HUB, Payload(PAYLOAD))
            await hub.receive()
            times.append(time.perf_counter() - begin)
        nursery.cancel_scope.cancel("measured")
    times.sort()
    p50, p99 = (times[int(count * share)] * 1e6 for share in (0.5, 0.99))
    return f"round trip, one loop, two hops each way: p50 {p50:.0f} us, p99 {p99:.0f} us"


def main() -> None:
    """The table."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    endpoint = f"ipc://@triolet-bench-{os.getpid()}-"
    print(f"{'receiver, 64 B payload, ' + str(messages):<42} {'k msg/s':>8} {'CPU us/msg':>10}")
    print(run_blocking(endpoint + "a", messages))
    print(trio.run(run_thread, endpoint + "b", messages))
    print(trio.run(run_channel, endpoint + "c", messages))
    print(trio.run(run_round_trips))
    print(trio.run(run_idle))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["plain", endpoint, count]:
            send_plain(endpoint, count)
        case ["channel", input_endpoint, output_endpoint, count]:
            trio.run(send_channel, input_endpoint, output_endpoint, count)
        case _:
            main()
