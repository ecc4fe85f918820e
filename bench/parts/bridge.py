"""Cost of a message through the bridge and the channels, beside blocking pyzmq and zmq.asyncio.

    python -m triolet.bench bridge [turns]

A sender process floods one way with 64-byte payloads over an abstract Unix socket; the receiver, in
this process, counts. The ways take turns, in an order drawn anew each time, so that whatever else
the machine does meets all of them. Printed are medians over the turns: messages a second, the
receiver's CPU time a message (the threads of ZeroMQ included), and the ratios that have targets.
"""

import asyncio
import contextlib
import functools
import random
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator

import attrs
import trio
import zmq
import zmq.asyncio

from ...transports.links.zmq_sockets import BoundEnd, HeldSockets, Socket, SocketSettings
from ...transports.links.zmq_thread import Arrival, Burst, SocketThread
from .step_ring import forked
from .words import argument_parser, at_least_one

PAYLOAD = bytes(64)
TURNS = 15
# Tens of milliseconds a turn, and fewer messages for the way that is an order slower.
MESSAGES_PER_TURN = 40_000
MESSAGES_PER_TURN_ASYNCIO = 8_000
RATE_TARGET = 0.85
CPU_TARGET = 1 / 8


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
    """Forked process that connects to an endpoint, sends one message, then floods on order."""

    orders: socket.socket

    def connect(self, endpoint: str) -> None:
        self.orders.send(endpoint.encode())

    def flood(self, count: int) -> None:
        self.orders.send(b"%d" % count)


@contextlib.contextmanager
def forked_sender() -> Iterator[Sender]:
    """A process that sends what it is asked for, until the block ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def send() -> None:
        ours.close()
        send_plain(theirs)

    with forked(send), ours:
        theirs.close()
        yield Sender(ours)


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

    held = HeldSockets(context, zmq.PULL, SocketSettings(), {0: BoundEnd(endpoint)})
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
    rates = {name: statistics.median(turn.rate for turn in way) for name, way in found.items()}
    cpus = {name: statistics.median(turn.cpu_us for turn in way) for name, way in found.items()}
    for name in WAYS:
        print(f"{name:<42} {rates[name] / 1000:>8.0f} {cpus[name]:>10.2f}")
    rate, cpu = rates[BRIDGE] / rates[BLOCKING], cpus[BRIDGE] / cpus[ASYNCIO]
    print(f"  rate of the bridge / of blocking pyzmq: {rate:.2f}  target {RATE_TARGET:.2f} or more")
    print(f"  CPU of the bridge / of zmq.asyncio:     {cpu:.3f} target {CPU_TARGET:.3f} or less")


def main() -> None:
    """Print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("turns", nargs="?", type=at_least_one, default=TURNS)
    compare(parser.parse_args().turns)


if __name__ == "__main__":
    main()
