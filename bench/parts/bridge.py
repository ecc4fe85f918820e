"""Cost of a message through the bridge and the channels, beside blocking pyzmq and zmq.asyncio.

    python -m triolet.bench bridge [turns]

A sender process floods one way with 64-byte payloads over an abstract Unix socket; the receiver, in
this process, counts. The ways take turns, in an order drawn anew each time, so that whatever else
the machine does meets all of them. Printed are medians over the turns: messages a second, the
receiver's CPU time a message (the threads of ZeroMQ included), and the ratios that have targets.
Then what the channels make of it: links, codec, events. Not a test: nothing is asserted.
"""

import asyncio
import contextlib
import functools
import os
import random
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import attrs
import trio
import zmq
import zmq.asyncio

from ...transports.codec import Codec
from ...transports.endpoint import abstract_endpoint
from ...transports.links.channel import Peer, PeerUp, Received
from ...transports.links.zmq_channel import HubChannel, SpokeChannel, open_hub, open_spoke
from ...transports.links.zmq_sockets import HeldSockets, Socket, SocketSettings
from ...transports.links.zmq_thread import Arrival, Burst, SocketThread
from .words import argument_parser, at_least_one

PAYLOAD = bytes(64)
HUB, SPOKE = Peer("frontend", 0, 1), Peer("engine", 0, 1)
TURNS = 15
# Tens of milliseconds a turn, and fewer messages for the way that is an order slower.
MESSAGES_PER_TURN = 40_000
MESSAGES_PER_TURN_ASYNCIO = 8_000
CHANNEL_MESSAGES = 100_000
# A sender of the channel pauses here, as credits would make it: half of the link's fuse.
UNACKNOWLEDGED_MAX = 32768
RATE_TARGET = 0.85
CPU_TARGET = 1 / 8


@attrs.frozen
class Payload:
    """Message of the channel runs."""

    data: bytes


CODEC = Codec(Payload)


@attrs.frozen
class Turn:
    """Turn of one way."""

    messages: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """µs of this process a message."""
        return self.cpu_seconds / self.messages * 1e6


@attrs.define(eq=False)
class Watch:
    """Starts when it is made."""

    begin: float = attrs.field(factory=time.perf_counter, init=False)
    cpu: float = attrs.field(factory=time.process_time, init=False)

    def stop(self, messages: int) -> Turn:
        return Turn(messages, time.perf_counter() - self.begin, time.process_time() - self.cpu)


@attrs.define(eq=False)
class Sender:
    """A forked process that connects to an endpoint, sends one message, then floods on order."""

    orders: socket.socket

    def connect(self, endpoint: str) -> None:
        self.orders.send(endpoint.encode())

    def flood(self, count: int) -> None:
        self.orders.send(b"%d" % count)


@contextlib.contextmanager
def forked_sender() -> Iterator[Sender]:
    """A process that sends what it is asked for, until the block ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        send_plain(theirs)
        os._exit(0)
    theirs.close()
    with ours:
        yield Sender(ours)
    os.waitpid(pid, 0)


def send_plain(orders: socket.socket) -> None:
    """The sender's process, until there are no more orders."""
    context: zmq.Context[Socket] = zmq.Context()
    push = context.socket(zmq.PUSH)
    while endpoint := orders.recv(256):
        # Only now: what is in the kernel when a peer closes may be lost to a receiver that is slow.
        push.close()
        push = context.socket(zmq.PUSH)
        push.connect(endpoint.decode())
        push.send(PAYLOAD)
        for _ in range(int(orders.recv(256))):
            push.send(PAYLOAD)


def run_blocking(endpoint: str, sender: Sender) -> Turn:
    """The limit: nothing but recv in a loop."""
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.bind(endpoint)
        sender.connect(endpoint)
        pull.recv()
        sender.flood(MESSAGES_PER_TURN)
        watch = Watch()
        for _ in range(MESSAGES_PER_TURN):
            pull.recv()
        return watch.stop(MESSAGES_PER_TURN)


async def run_bridge(endpoint: str, sender: Sender) -> Turn:
    """The owner thread alone: messages arrive in the loop."""
    context: zmq.Context[Socket] = zmq.Context()
    seen, wanted, reached = 0, 1, trio.Event()

    def handle(arrival: Arrival) -> None:
        nonlocal seen
        assert isinstance(arrival, Burst)
        seen += len(arrival.messages)
        if seen == wanted:
            reached.set()

    held = HeldSockets(context, zmq.PULL, SocketSettings(), endpoint)
    thread = SocketThread("bridge", held, handle)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(thread.run, task_status=trio.TASK_STATUS_IGNORED))
        sender.connect(endpoint)
        await reached.wait()
        wanted, reached = 1 + MESSAGES_PER_TURN, trio.Event()
        sender.flood(MESSAGES_PER_TURN)
        watch = Watch()
        await reached.wait()
        turn = watch.stop(MESSAGES_PER_TURN)
        nursery.cancel_scope.cancel("measured")
    context.term()
    return turn


async def run_asyncio(endpoint: str, sender: Sender) -> Turn:
    """Await recv, as vLLM does."""
    with zmq.asyncio.Context() as context, context.socket(zmq.PULL) as pull:
        pull.bind(endpoint)
        sender.connect(endpoint)
        await pull.recv()
        sender.flood(MESSAGES_PER_TURN_ASYNCIO)
        watch = Watch()
        for _ in range(MESSAGES_PER_TURN_ASYNCIO):
            await pull.recv()
        return watch.stop(MESSAGES_PER_TURN_ASYNCIO)


BLOCKING, BRIDGE, ASYNCIO = "blocking pyzmq", "bridge: owner thread to loop", "zmq.asyncio"
WAYS: dict[str, Callable[[str, Sender], Turn]] = {
    BLOCKING: run_blocking,
    BRIDGE: lambda endpoint, sender: trio.run(run_bridge, endpoint, sender),
    ASYNCIO: lambda endpoint, sender: asyncio.run(run_asyncio(endpoint, sender)),
}


def compare(turns: int) -> None:
    """The ways beside each other, and the two ratios."""
    found: dict[str, list[Turn]] = {name: [] for name in WAYS}
    order = random.Random(0)
    with forked_sender() as sender:
        for _ in range(turns):
            for name in order.sample(list(WAYS), len(WAYS)):
                endpoint = f"ipc://@triolet-bench-{secrets.token_hex(8)}"
                found[name].append(WAYS[name](endpoint, sender))
    print(f"{'receiver, 64 B one way':<42} {'k msg/s':>8} {'CPU us/msg':>10}")
    for name, way in found.items():
        print_row(name, way)
    rates = {name: statistics.median(turn.rate for turn in way) for name, way in found.items()}
    cpus = {name: statistics.median(turn.cpu_us for turn in way) for name, way in found.items()}
    rate, cpu = rates[BRIDGE] / rates[BLOCKING], cpus[BRIDGE] / cpus[ASYNCIO]
    print(f"  rate of the bridge / of blocking pyzmq: {rate:.2f}  target {RATE_TARGET:.2f} or more")
    print(f"  CPU of the bridge / of zmq.asyncio:     {cpu:.3f} target {CPU_TARGET:.3f} or less")


def print_row(name: str, turns: list[Turn]) -> None:
    """Medians."""
    rate = statistics.median(turn.rate for turn in turns) / 1000
    cpu = statistics.median(turn.cpu_us for turn in turns)
    print(f"{name:<42} {rate:>8.0f} {cpu:>10.2f}")


def spawn_channel_sender(*arguments: str) -> "subprocess.Popen[bytes]":
    """This file again, as the spoke that sends."""
    command = [sys.executable, "-m", "triolet.bench.parts.bridge", "channel"]
    return subprocess.Popen([*command, *arguments])


async def start(nursery: trio.Nursery, channel: HubChannel | SpokeChannel) -> None:
    """Start all tasks of a channel."""
    for task in (channel.run_deadlines, channel.run_input, channel.run_output):

        async def run(
            task_status: trio.TaskStatus[str], task: Callable[..., object] = task
        ) -> None:
            await task(task_status=task_status)  # type: ignore[misc]  # all are coroutines

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
    link = spoke.links._links[HUB]
    return link._sent - link._acknowledged > UNACKNOWLEDGED_MAX


async def run_channel() -> Turn:
    """Run the whole channel: numbers, acknowledgements, codec, events."""
    endpoint = f"ipc://@triolet-bench-{secrets.token_hex(8)}"
    where = (endpoint + "-in", endpoint + "-out")
    async with (
        open_hub(HUB, CODEC, CODEC, input_endpoint=where[0], output_endpoint=where[1]) as hub,
        trio.open_nursery() as nursery,
    ):
        await start(nursery, hub)
        with spawn_channel_sender(*where, str(CHANNEL_MESSAGES)) as sender:
            events = await hub.receive()
            assert isinstance(events[0], PeerUp)
            watch, seen = Watch(), 0
            while seen < CHANNEL_MESSAGES:
                seen += sum(isinstance(event, Received) for event in await hub.receive())
            turn = watch.stop(CHANNEL_MESSAGES)
            sender.terminate()
        nursery.cancel_scope.cancel("measured")
    return turn


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


def main(turns: int) -> None:
    """The tables."""
    compare(turns)
    print_row("channel: link, codec, events", [trio.run(run_channel) for _ in range(3)])
    print(trio.run(run_round_trips))
    print(trio.run(run_idle))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["channel", input_endpoint, output_endpoint, count]:
            trio.run(send_channel, input_endpoint, output_endpoint, count)
        case _:
            parser = argument_parser(__doc__)
            parser.add_argument("turns", nargs="?", type=at_least_one, default=TURNS)
            main(parser.parse_args().turns)
