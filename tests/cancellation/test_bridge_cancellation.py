"""Cancelling the bridge at every point: the thread is joined, its sockets and eventfd are gone."""

import secrets
import threading
from collections.abc import Iterator, Sequence

import attrs
import pytest
import trio
import zmq

from triolet.tests.contracts.channel import CODEC, HUB, SPOKES, Mesh, Numbered, join, running
from triolet.tests.leaks import check_no_leaks
from triolet.transports.array import Frame
from triolet.transports.endpoint import abstract_endpoint
from triolet.transports.links.zmq_channel import open_hub, open_spoke
from triolet.transports.links.zmq_sockets import (
    BoundSocket,
    ConnectedSockets,
    EndpointInUse,
    Received,
    Socket,
    SocketSettings,
)
from triolet.transports.links.zmq_thread import (
    Arrival,
    Connect,
    LinkOutbox,
    SendFrames,
    SocketThread,
)

SETTINGS = SocketSettings(high_water=1000, linger_ms=0)
# Only a failing test meets it.
DEADLINE_S = 60
NAME = "test-socket-thread"


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    context: zmq.Context[Socket] = zmq.Context()
    yield context
    # Hangs (and the fault handler tells) if a socket was left open.
    context.term()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No descriptor, and no thread still owning sockets."""
    with check_no_leaks():
        yield


@attrs.define(eq=False)
class Scripted:
    """Sockets that are none: what the owner thread does can be held up and made to fail."""

    fail_open: Exception | None = None
    fail_send: Exception | None = None
    reached: threading.Event = attrs.field(factory=threading.Event)
    go_on: threading.Event = attrs.field(factory=threading.Event)
    hold_open: bool = False
    hold_send: bool = False
    sent: int = 0
    closed: bool = False

    def _hold(self, wanted: bool) -> None:
        if wanted:
            self.reached.set()
            assert self.go_on.wait(DEADLINE_S)

    def open(self) -> str:
        self._hold(self.hold_open)
        if self.fail_open is not None:
            raise self.fail_open
        return "somewhere"

    def connect(self, key: object, endpoint: str, identity: bytes) -> Socket:
        raise AssertionError("not in this test")

    def disconnect(self, key: object) -> Socket | None:
        return None

    def sockets(self) -> dict[object, Socket]:
        return {}

    def send(self, key: object, frames: Sequence[Frame]) -> str:
        self._hold(self.hold_send)
        if self.fail_send is not None:
            raise self.fail_send
        self.sent += 1
        return ""

    def receive(self, socket: Socket, limit: int) -> list[Received]:
        raise AssertionError("there are no sockets")

    def close(self) -> None:
        self.closed = True


def ignore(arrival: Arrival) -> None:
    pass


async def run(thread: SocketThread, task_status: trio.TaskStatus[str]) -> None:
    await thread.run(task_status=task_status)


async def test_cancelled_before_it_begins() -> None:
    sockets = Scripted()
    with trio.CancelScope() as scope:
        scope.cancel("the test cancels it at once")
        await SocketThread(NAME, sockets, ignore).run(task_status=trio.TASK_STATUS_IGNORED)
    assert scope.cancelled_caught


@pytest.mark.parametrize("where", ["open", "send"])
async def test_cancelled_while_the_thread_is_busy(where: str) -> None:
    sockets = Scripted(hold_open=where == "open", hold_send=where == "send")
    thread = SocketThread(NAME, sockets, ignore)
    outbox = LinkOutbox("peer", 10)
    thread.submit(SendFrames(outbox, ()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, thread, trio.TASK_STATUS_IGNORED)
        assert await trio.to_thread.run_sync(sockets.reached.wait, DEADLINE_S)
        nursery.cancel_scope.cancel("the test cancels it while the thread is held up")
        sockets.go_on.set()
    assert sockets.closed
    assert sockets.sent == 1, "what was submitted before is still sent"


async def test_cancelled_while_idle_and_what_was_queued_is_sent() -> None:
    sockets = Scripted()
    thread = SocketThread(NAME, sockets, ignore)
    outbox = LinkOutbox("peer", 5000)
    async with trio.open_nursery() as nursery:
        assert await nursery.start(run, thread) == "somewhere"
        for _ in range(1000):
            assert thread.submit(SendFrames(outbox, ()))
        nursery.cancel_scope.cancel("the test cancels it with a full outbox")
    assert sockets.closed
    assert sockets.sent == 1000
    # Nobody is there any more; submitting is harmless.
    thread.submit(SendFrames(outbox, ()))
    assert sockets.sent == 1000


async def test_an_error_in_the_thread_reaches_the_nursery() -> None:
    sockets = Scripted(fail_send=ValueError("from the thread"))
    thread = SocketThread(NAME, sockets, ignore)
    with pytest.RaisesGroup(
        pytest.RaisesExc(ValueError, match="from the thread"), flatten_subgroups=True
    ):
        async with trio.open_nursery() as nursery:
            await nursery.start(run, thread)
            thread.submit(SendFrames(LinkOutbox("peer", 10), ()))
    assert sockets.closed


async def test_an_error_while_opening_is_one_of_starting() -> None:
    sockets = Scripted(fail_open=EndpointInUse("somewhere"))
    with pytest.RaisesGroup(EndpointInUse, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(run, SocketThread(NAME, sockets, ignore))
    assert sockets.closed


async def test_an_error_of_the_handler_ends_the_thread(context: zmq.Context[Socket]) -> None:
    def fail(arrival: Arrival) -> None:
        raise ValueError("from the handler")

    endpoint = abstract_endpoint(secrets.token_hex(8), "frontend", 0, 1, socket="test")
    push = SocketThread(NAME, ConnectedSockets(context, zmq.PUSH, SETTINGS), ignore)
    outbox = LinkOutbox("hub", 10)
    push.submit(Connect(outbox, endpoint, b"E"))
    push.submit(SendFrames(outbox, (b"x",)))
    pull = SocketThread(NAME, BoundSocket(context, zmq.PULL, endpoint, SETTINGS), fail)
    with pytest.RaisesGroup(
        pytest.RaisesExc(ValueError, match="from the handler"), flatten_subgroups=True
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, push, trio.TASK_STATUS_IGNORED)
            nursery.start_soon(run, pull, trio.TASK_STATUS_IGNORED)


async def test_started_and_cancelled_many_times() -> None:
    endpoint = abstract_endpoint(secrets.token_hex(8), "frontend", 0, 1, socket="test")
    for _ in range(20):
        context: zmq.Context[Socket] = zmq.Context()
        thread = SocketThread(NAME, BoundSocket(context, zmq.PULL, endpoint, SETTINGS), ignore)
        async with trio.open_nursery() as nursery:
            # The name is free again each time, so the socket before it was closed.
            assert await nursery.start(run, thread) == endpoint
            nursery.cancel_scope.cancel("the test cancels it")
        context.term()


@pytest.mark.parametrize("cancelled", ["input", "output"])
async def test_one_task_of_a_channel_is_cancelled_alone(cancelled: str) -> None:
    """Its sockets are closed; what is sent after that goes nowhere and hangs nobody."""
    endpoints = [
        abstract_endpoint(secrets.token_hex(8), "frontend", 0, 1, socket=name)
        for name in ("input", "output")
    ]
    async with (
        open_hub(
            HUB, CODEC, CODEC, input_endpoint=endpoints[0], output_endpoint=endpoints[1]
        ) as hub,
        open_spoke(SPOKES[0], CODEC, CODEC) as spoke,
        running(spoke),
        trio.open_nursery() as nursery,
    ):
        scopes = {"input": trio.CancelScope(), "output": trio.CancelScope()}
        ended = trio.Event()

        async def run_one(name: str, task_status: trio.TaskStatus[str]) -> None:
            task = hub.run_input if name == "input" else hub.run_output
            with scopes[name]:
                await task(task_status=task_status)
            ended.set()

        for name in scopes:
            await nursery.start(run_one, name)
        await join(Mesh(hub, (spoke,)))
        scopes[cancelled].cancel("the test cancels one of two")
        await ended.wait()
        for _ in range(10):
            hub.send(SPOKES[0], Numbered(1))
            spoke.send(HUB, Numbered(1))
        nursery.cancel_scope.cancel("the test is over")
