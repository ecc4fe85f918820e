"""The bridge: bursts, bounds, drops, nothing waits, and the loop's pauses for its thread."""

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import zmq
from zmq.utils import garbage

from triolet.nurseries.tasks.changes import Changes
from triolet.transports.array import Frame
from triolet.transports.endpoint import abstract_endpoint
from triolet.transports.links.zmq_sockets import (
    BoundEnd,
    Enveloped,
    HeldSockets,
    Received,
    Socket,
    SocketSettings,
    Target,
)
from triolet.transports.links.zmq_thread import (
    PATIENCE_S,
    Arrival,
    Burst,
    Connect,
    Disconnect,
    LinkOutbox,
    Ringer,
    SendFrames,
    SocketThread,
    Unreachable,
)

SETTINGS = SocketSettings(high_water=100, linger_ms=0)
# Only a failing test meets it.
DEADLINE_S = 60


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    context: zmq.Context[Socket] = zmq.Context()
    yield context
    context.term()


@attrs.define(eq=False)
class Arrivals:
    """Collects what a thread hands over."""

    # Messages, and what else there was.
    seen: list[list[bytes] | Arrival] = attrs.field(factory=list)
    changed: Changes = attrs.field(factory=Changes)

    def handle(self, arrival: Arrival) -> None:
        if isinstance(arrival, Burst):
            for message in arrival.messages:
                assert not isinstance(message, Enveloped)
                frames = [message] if isinstance(message, bytes) else message
                self.seen.append([bytes(frame) for frame in frames])
        else:
            self.seen.append(arrival)
        self.changed.notify()

    async def wait_for(self, count: int) -> list[list[bytes] | Arrival]:
        with trio.fail_after(DEADLINE_S):
            while len(self.seen) < count:
                await self.changed.wait()
        return self.seen


@attrs.define(eq=False)
class Ends:
    pull: Arrivals
    push_thread: SocketThread
    push: Arrivals
    endpoint: str


@asynccontextmanager
async def ends(context: zmq.Context[Socket]) -> AsyncIterator[Ends]:
    """A thread with a PULL and a thread for PUSHes, both running."""
    endpoint = abstract_endpoint(secrets.token_hex(8), "frontend", 0, 1, socket="test")
    pull, push = Arrivals(), Arrivals()
    bound = HeldSockets(context, zmq.PULL, SETTINGS, {0: BoundEnd(endpoint)})
    pull_thread = SocketThread("pull", bound, pull.handle)
    connected = HeldSockets(context, zmq.PUSH, SETTINGS)
    push_thread = SocketThread("push", connected, push.handle)
    async with trio.open_nursery() as nursery:
        assert await nursery.start(run, pull_thread) == endpoint
        assert await nursery.start(run, push_thread) == ""
        yield Ends(pull, push_thread, push, endpoint)
        nursery.cancel_scope.cancel("the test is over")


async def run(thread: SocketThread, task_status: trio.TaskStatus[str]) -> None:
    await thread.run(task_status=task_status)


async def test_frames_cross_in_order(context: zmq.Context[Socket]) -> None:
    async with ends(context) as pair:
        outbox = LinkOutbox("hub", 5000)
        pair.push_thread.submit(Connect(outbox, Target(pair.endpoint, b"E")))
        for number in range(3000):
            # Within the high-water mark: the next hundred only when these have arrived.
            if number % 100 == 0:
                await pair.pull.wait_for(number)
            assert pair.push_thread.submit(SendFrames(outbox, (b"%d" % number, b"body")))
        arrivals = await pair.pull.wait_for(3000)
    assert arrivals == [[b"%d" % number, b"body"] for number in range(3000)]
    assert pair.push.seen == []


async def test_an_outbox_has_a_bound(context: zmq.Context[Socket]) -> None:
    connected = HeldSockets(context, zmq.PUSH, SETTINGS)
    thread = SocketThread("push", connected, Arrivals().handle)
    outbox = LinkOutbox("hub", 2)
    sent = [thread.submit(SendFrames(outbox, (b"x",))) for _ in range(3)]
    assert sent == [True, True, False]
    assert thread.submit(Disconnect(outbox)), "orders have room"


async def test_an_unreachable_peer_is_reported_once_and_the_rest_dropped(
    context: zmq.Context[Socket],
) -> None:
    async with ends(context) as pair:
        nowhere, reachable = LinkOutbox("nowhere", 100), LinkOutbox("hub", 100)
        for number in range(3):
            pair.push_thread.submit(SendFrames(nowhere, (b"%d" % number,)))
        pair.push_thread.submit(SendFrames(nowhere, (b"reset",), best_effort=True))
        pair.push_thread.submit(Connect(reachable, Target(pair.endpoint, b"E")))
        pair.push_thread.submit(SendFrames(reachable, (b"others go on",)))
        await pair.pull.wait_for(1)
        (arrival,) = await pair.push.wait_for(1)
    assert isinstance(arrival, Unreachable)
    assert arrival.outbox is nowhere
    assert nowhere.closed
    assert nowhere.sent == nowhere.queued


async def test_a_closed_outbox_sends_nothing_but_best_effort(
    context: zmq.Context[Socket],
) -> None:
    async with ends(context) as pair:
        outbox = LinkOutbox("hub", 100)
        pair.push_thread.submit(Connect(outbox, Target(pair.endpoint, b"E")))
        outbox.closed = True
        pair.push_thread.submit(SendFrames(outbox, (b"dropped",)))
        pair.push_thread.submit(SendFrames(outbox, (b"reset",), best_effort=True))
        assert await pair.pull.wait_for(1) == [[b"reset"]]


async def test_a_large_frame_arrives_whole_and_starts_no_thread(
    context: zmq.Context[Socket],
) -> None:
    filling = bytearray(range(256)) * 4096
    async with ends(context) as pair:
        outbox = LinkOutbox("hub", 100)
        pair.push_thread.submit(Connect(outbox, Target(pair.endpoint, b"E")))
        pair.push_thread.submit(SendFrames(outbox, (b"head", memoryview(filling))))
        assert await pair.pull.wait_for(1) == [[b"head", bytes(filling)]]
    assert not garbage.gc.is_alive(), "pyzmq's own, for frames that it does not copy"


@attrs.define(eq=False)
class Quiet(HeldSockets):
    """Sockets behind a descriptor that never tells of anything: a real one does once a change."""

    waiting: list[bytes] = attrs.field(factory=list)
    asked: list[int] = attrs.field(factory=list)

    def open(self) -> dict[int, str]:
        self._sockets[None] = self.context.socket(self.kind)
        return {0: "somewhere"}

    def send(self, key: object, frames: Sequence[Frame]) -> str:
        # libzmq noticed during the call what the descriptor would have told.
        self.waiting.append(b"came while sending")
        return ""

    def receive(self, socket: Socket, limit: int) -> list[Received]:
        burst, self.waiting = self.waiting[:limit], self.waiting[limit:]
        self.asked.append(len(burst))
        return [*burst]


async def test_what_is_noticed_while_sending_is_not_slept_over(
    context: zmq.Context[Socket],
) -> None:
    arrivals, quiet = Arrivals(), Quiet(context, zmq.PULL, SETTINGS)
    thread = SocketThread("quiet", quiet, arrivals.handle)
    async with trio.open_nursery() as nursery:
        await nursery.start(run, thread)
        for count in range(1, 4):
            assert thread.submit(SendFrames(LinkOutbox("peer", 1), (b"x",)))
            await arrivals.wait_for(count)
        nursery.cancel_scope.cancel("the test is over")


async def test_a_full_burst_is_followed_by_another_look(context: zmq.Context[Socket]) -> None:
    arrivals = Arrivals()
    messages = [b"%d" % number for number in range(1300)]
    quiet = Quiet(context, zmq.PULL, SETTINGS, waiting=list(messages))
    async with trio.open_nursery() as nursery:
        await nursery.start(run, SocketThread("quiet", quiet, arrivals.handle))
        assert await arrivals.wait_for(1300) == [[message] for message in messages]
        nursery.cancel_scope.cancel("the test is over")
    assert quiet.asked[:3] == [512, 512, 276]


SLEEPS_S, BUSY_S = 1.0, 0.0


@attrs.define(eq=False)
class Turns:
    """A loop's turns against a thread that makes its rounds when the test says so."""

    bridge: SocketThread = attrs.field(init=False)
    ringer: Ringer = attrs.field(init=False)
    now_s: float = 100.0
    pauses: int = 0

    def __attrs_post_init__(self) -> None:
        no_sockets: Any = None
        self.bridge = SocketThread("test", no_sockets, lambda _: None)
        self.ringer = Ringer(self.bridge, now_s=lambda: self.now_s, pause=self._pause)

    def _pause(self) -> None:
        self.pauses += 1

    def turn(self, timeout_s: float = BUSY_S, *, after_s: float, rounds: int = 0) -> int:
        """One turn of the loop so long after the last; how often the loop has paused by then."""
        self.now_s += after_s
        self.bridge.rounds += rounds
        self.ringer.before_io_wait(timeout_s)
        return self.pauses


def test_a_starved_thread_is_made_way_for_once_in_its_patience() -> None:
    turns = Turns()
    step_s = PATIENCE_S / 4
    # The first busy turn begins the count, and so does the first after a pause.
    assert [turns.turn(after_s=step_s) for _ in range(14)] == [0] * 5 + [1] * 6 + [2] * 3


def test_a_loop_that_sleeps_or_a_thread_that_comes_round_needs_no_pause() -> None:
    turns = Turns()
    for _ in range(100):
        turns.turn(after_s=PATIENCE_S * 2 / 3)
        turns.turn(SLEEPS_S, after_s=PATIENCE_S * 2 / 3)
    for _ in range(100):
        turns.turn(after_s=PATIENCE_S * 2 / 3)
        turns.turn(after_s=PATIENCE_S * 2 / 3, rounds=1)
    assert turns.pauses == 0


class Starved(SocketThread):
    """One whose loop gets no memory before it sleeps, once the task runs."""

    def ring(self) -> None:
        if self.bound is not None:
            raise MemoryError


async def test_a_ringer_that_fails_ends_the_task(context: zmq.Context[Socket]) -> None:
    endpoint = abstract_endpoint(secrets.token_hex(8), "frontend", 0, 1, socket="test")
    held = HeldSockets(context, zmq.PULL, SETTINGS, {0: BoundEnd(endpoint)})
    bridge = Starved("test", held, lambda _: None)
    with trio.fail_after(DEADLINE_S), pytest.RaisesGroup(MemoryError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(bridge.run)
