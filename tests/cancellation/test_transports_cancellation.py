"""Cancellation in transports, at every point: threads are joined, sockets and eventfds are gone."""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import attrs
import pytest
import trio
import trio.testing
import zmq

from triolet.tests.leaks import check_no_leaks
from triolet.transports.array import Frame
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import perform_child_handshake, perform_parent_handshake
from triolet.transports.control.passed_fds import close_fds
from triolet.transports.endpoint import abstract_endpoint
from triolet.transports.links.zmq_sockets import (
    BoundEnd,
    EndpointInUse,
    HeldSockets,
    Socket,
    SocketSettings,
    Target,
)
from triolet.transports.links.zmq_thread import (
    Arrival,
    Connect,
    LinkOutbox,
    SendFrames,
    SocketThread,
)

from ..checkpoints import act_at_nth_checkpoint
from ..leaks import open_fds

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
class Scripted(HeldSockets):
    """Sockets that are none: what the owner thread does can be held up and made to fail."""

    context: Any = None
    kind: int = zmq.PUSH
    settings: SocketSettings = SETTINGS
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

    def open(self) -> dict[int, str]:
        self._hold(self.hold_open)
        if self.fail_open is not None:
            raise self.fail_open
        return {0: "somewhere"}

    def send(self, key: object, frames: Sequence[Frame]) -> str:
        self._hold(self.hold_send)
        if self.fail_send is not None:
            raise self.fail_send
        self.sent += 1
        return ""

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
    push = SocketThread(NAME, HeldSockets(context, zmq.PUSH, SETTINGS), ignore)
    outbox = LinkOutbox("hub", 10)
    push.submit(Connect(outbox, Target(endpoint, b"E")))
    push.submit(SendFrames(outbox, (b"x",)))
    held = HeldSockets(context, zmq.PULL, SETTINGS, {0: BoundEnd(endpoint)})
    pull = SocketThread(NAME, held, fail)
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
        held = HeldSockets(context, zmq.PULL, SETTINGS, {0: BoundEnd(endpoint)})
        thread = SocketThread(NAME, held, ignore)
        async with trio.open_nursery() as nursery:
            # The name is free again each time, so the socket before it was closed.
            assert await nursery.start(run, thread) == endpoint
            nursery.cancel_scope.cancel("the test cancels it")
        context.term()


# No operation here has more steps; the loops end earlier, when nothing was left to cancel.
STEPS_MAX = 60
# A message that has not come after so long is lost; never waited for when all is well.
LOST_S = 60.0


@attrs.frozen
class Order:
    number: int
    payload: bytes = b""


async def run_cancelled_at(step: int, operation: Callable[[], Awaitable[None]]) -> bool:
    """Runs `operation`, cancelled just before its n-th step; True if it was not over by then."""
    scope = trio.CancelScope()
    if step == 1:
        scope.cancel("before the first step")

    async def run_in_scope() -> None:
        with scope:
            await operation()

    await act_at_nth_checkpoint(
        run_in_scope, max(1, step - 1), lambda: scope.cancel("the step of this test")
    )
    return scope.cancelled_caught


@contextlib.asynccontextmanager
async def open_pair() -> AsyncIterator[tuple[ControlChannel, ControlChannel]]:
    before = open_fds()
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ControlChannel(left, sends=[Order]) as sender,
        ControlChannel(right, receives=[Order]) as receiver,
    ):
        yield sender, receiver
    assert open_fds() == before


@pytest.mark.parametrize("size", [0, 100_000], ids=["inline", "in a memfd"])
@pytest.mark.parametrize("waits", [False, True], ids=["there", "waits"])
async def test_a_cancelled_receive_loses_neither_message_nor_descriptor(
    size: int, waits: bool
) -> None:
    order = Order(1, bytes(size))
    for step in range(1, STEPS_MAX):
        async with open_pair() as (sender, receiver), trio.open_nursery() as nursery:
            received: list[object] = []

            async def receive() -> None:
                message, fds = await receiver.receive()
                close_fds(fds)
                received.append(message)  # noqa: B023 (awaited within this turn)

            if waits:
                nursery.start_soon(_send_when_blocked, sender, order)
            else:
                await sender.send(order, [0, 1])
            cancelled = await run_cancelled_at(step, receive)
            if cancelled:
                assert not received
                with trio.fail_after(LOST_S):
                    await receive()
            assert received == [order]
        if not cancelled:
            return
    pytest.fail("never ran to its end")


async def _send_when_blocked(sender: ControlChannel, order: Order) -> None:
    await trio.testing.wait_all_tasks_blocked()
    await sender.send(order, [0, 1])


async def test_a_cancelled_send_is_whole_or_nothing_and_keeps_the_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The socket is full and senders queue; the second of three is cancelled at each step."""
    for step in range(1, STEPS_MAX):
        async with open_pair() as (sender, receiver):
            filled = await _fill(sender)
            outcome: list[bool] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sender.send, Order(filled))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(_send_cancelled_at, sender, filled + 1, (step, outcome))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(sender.send, Order(filled + 2, bytes(50_000)))
                await trio.testing.wait_all_tasks_blocked()
                numbers = await _drain(receiver)
            numbers += await _drain(receiver)
            (cancelled,) = outcome
            expected = [*range(filled + 3)]
            if cancelled:
                expected.remove(filled + 1)
            assert numbers == expected
        if not cancelled:
            return
    pytest.fail("never ran to its end")


async def _send_cancelled_at(
    sender: ControlChannel, number: int, how: tuple[int, list[bool]]
) -> None:
    step, outcome = how
    outcome.append(await run_cancelled_at(step, lambda: sender.send(Order(number), [0])))


async def _fill(sender: ControlChannel) -> int:
    """Sends until the socket takes no more; returns how many went."""
    for number in range(1000):
        with trio.move_on_after(0.001) as scope:
            await sender.send(Order(number, bytes(30_000)))
        if scope.cancelled_caught:
            return number
    raise AssertionError("the socket is never full")


async def _drain(receiver: ControlChannel) -> list[int]:
    """Takes messages until none comes any more."""
    numbers: list[int] = []
    while True:
        with trio.move_on_after(0.01) as scope:
            message, fds = await receiver.receive()
            close_fds(fds)
            assert isinstance(message, Order)
            numbers.append(message.number)
        if scope.cancelled_caught:
            return numbers


@pytest.mark.parametrize("cancelled_side", ["parent", "child"])
async def test_a_cancelled_handshake_leaves_no_descriptor(cancelled_side: str) -> None:
    """INIT carries two descriptors; whichever side is cancelled, at any step, none stays open."""
    for step in range(1, STEPS_MAX):
        async with open_pair() as (parent_end, child_end):
            over = False

            async def parent() -> None:
                await perform_parent_handshake(
                    parent_end,
                    b"",
                    who="a child",
                    role="child",
                    pid=os.getpid(),
                    boot_timeout_s=60,
                    fds=[0, 1],
                )

            async def child() -> None:
                handshake = await perform_child_handshake(child_end, "child")
                try:
                    await handshake.progress("booting", 0.5)
                    await handshake.ready(b"")
                finally:
                    close_fds(handshake.fds)

            mine, other = (parent, child) if cancelled_side == "parent" else (child, parent)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other)
                over = not await run_cancelled_at(step, mine)
                nursery.cancel_scope.cancel("the other side may wait for ever")
        if over:
            return
    pytest.fail("never ran to its end")
