"""The bridge: one owner thread for the ZeroMQ sockets of one role, as one child task of a nursery.

Sockets are made, used and closed in the thread; nobody else touches them. The thread waits in one
`zmq.Poller` on its sockets and one eventfd, which means "the outbox has work" or "stop". It never
waits for the loop: what came in goes to a deque, with one `run_sync_soon` per burst. The loop never
waits for the thread: `submit` appends to a deque and writes the eventfd at most once per sleep.

It never waits for a peer either: a send that would block is the end of that peer's link generation
(POLLOUT on a ROUTER is always set while any peer has room). Must not know links, headers or codecs.
"""

import math
import os
import select
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NoReturn

import attrs
import trio
import zmq

from .array import Frame
from .zmq_sockets import HeldSockets, Received

# One round of the thread: neither direction starves the other. A burst is handed to the loop
# whole, at some 3 µs a message, so that other tasks are at most one and a half milliseconds away.
_SENDS_PER_ROUND = 256
_RECEIVES_PER_ROUND = 512
# After a burst this large more is on its way at once, and two threads that both want to run take
# the GIL from each other at every message. The loop gets a head start (measured: a sixth less CPU
# a message); a message that comes alone never meets it.
_FLOOD_BURST = 64
_HEAD_START_S = 50e-6


@attrs.define(eq=False)
class Outbox:
    """One link generation's way out through one thread.

    `queued` is written by the loop, `sent` by the thread: queued - sent commands are on the way.
    """

    key: Hashable
    bound: int
    queued: int = 0
    sent: int = 0
    # Set by the loop (let go) or the thread (unreachable): what is queued is dropped unsent.
    closed: bool = False


@attrs.define(eq=False)
class Connect:
    """Make the socket of this outbox."""

    outbox: Outbox
    endpoint: str
    identity: bytes


@attrs.define(eq=False)
class Disconnect:
    """Close the socket of this outbox and drop what is queued for it."""

    outbox: Outbox


@attrs.define(eq=False)
class Send:
    """Send one message. `best_effort`: even if the outbox is closed, and failing is no news."""

    outbox: Outbox
    frames: Sequence[Frame]
    best_effort: bool = False


Command = Connect | Disconnect | Send


@attrs.define(eq=False)
class Burst:
    """Messages that arrived by the socket `key` (None: the bound one), oldest first."""

    key: Hashable
    messages: list[Received]


@attrs.define(eq=False)
class Unreachable:
    """The peer of this outbox could not be sent to; nothing more will be."""

    outbox: Outbox
    reason: str


Arrival = Burst | Unreachable


@attrs.define(eq=False)
class SocketThread:
    """One owner thread. `submit` from the loop; `run` is its task."""

    name: str
    sockets: HeldSockets
    handle: Callable[[Arrival], None]

    # Bounded per outbox (`Outbox.bound`), plus Connect and Disconnect, paced by links' rests.
    _commands: deque[Command] = attrs.field(factory=deque, init=False)
    # Bounded by what the peers may have unacknowledged (`LinkSettings.unacknowledged_max` each).
    _arrivals: deque[Arrival] = attrs.field(factory=deque, init=False)
    _eventfd: int = attrs.field(default=-1, init=False)
    # The thread is not in poll(): it will look at the commands before it sleeps.
    _awake: bool = attrs.field(default=True, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    _flush_pending: bool = attrs.field(default=False, init=False)
    _token: trio.lowlevel.TrioToken | None = attrs.field(default=None, init=False)
    # Where the sockets are bound ("": they connect); None until they are open.
    bound: str | None = attrs.field(default=None, init=False)
    _reader: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    # ---- loop

    def submit(self, command: Command) -> bool:
        """Queue one command; never waits. False if the outbox is full or closed.

        Before `run` has started commands are kept; after it has ended they go nowhere.
        """
        outbox = command.outbox
        if type(command) is Send:
            if outbox.queued - outbox.sent >= outbox.bound:
                return False
            outbox.queued += 1
        self._commands.append(command)
        if not self._awake:
            self._awake = True
            os.eventfd_write(self._eventfd, 1)
        return True

    async def run(self, *, task_status: trio.TaskStatus[str]) -> NoReturn:
        """Background task; `started` gives the endpoint that was bound.

        Never returns unless cancelled. Raises (in a group, as nurseries do) what the thread or
        `handle` raised. Resource handling: when it is left, the thread is joined and its sockets
        are closed; what was submitted before that is sent as far as nobody has to be waited for.
        """
        self._token = trio.lowlevel.current_trio_token()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._host)
                try:
                    await self._hand_over(task_status)
                finally:
                    self._stopping = True
                    os.eventfd_write(self._eventfd, 1)
        finally:
            # From here on `submit` only queues.
            self._awake = True
            os.close(self._eventfd)
        raise AssertionError("_hand_over does not return")

    async def _host(self) -> None:
        # Its own limiter: two threads per channel must not eat what to_thread gives to others.
        limiter = trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(
            self._main, abandon_on_cancel=False, limiter=limiter, thread_name=self.name
        )

    async def _hand_over(self, task_status: trio.TaskStatus[str]) -> NoReturn:
        while self.bound is None:
            await self._reader.park()
        task_status.started(self.bound)
        arrivals = self._arrivals
        while True:
            while not arrivals:
                await self._reader.park()
            self.handle(arrivals.popleft())
            if arrivals:  # if not, parking is one
                await trio.lowlevel.checkpoint()

    def _flush(self) -> None:
        # Flag first: what the thread appends from here on asks for another flush.
        self._flush_pending = False
        self._reader.unpark_all()

    # ---- owner thread

    def _main(self) -> None:
        try:
            bound = self.sockets.open()
            poller = zmq.Poller()
            poller.register(self._eventfd, zmq.POLLIN)
            for socket in self.sockets.sockets().values():
                poller.register(socket, zmq.POLLIN)
            self.bound = bound
            self._ask_flush()
            while not self._stopping:
                self._round(poller)
            self._send_commands(poller, math.inf)
        finally:
            self.sockets.close()

    def _round(self, poller: zmq.Poller) -> None:
        # Flag first, then look: a command appended in between is seen here or writes the eventfd.
        self._awake = False
        busy = bool(self._commands) or self._stopping
        ready = dict(poller.poll(0 if busy else None))
        self._awake = True
        if self._eventfd in ready:
            os.eventfd_read(self._eventfd)
        self._send_commands(poller, _SENDS_PER_ROUND)
        received = 0
        for key, socket in self.sockets.sockets().items():
            if socket in ready:
                # The poller tells again of what is left.
                burst = self.sockets.receive(socket, _RECEIVES_PER_ROUND)
                if burst:
                    received += len(burst)
                    self._arrivals.append(Burst(key, burst))
        if self._arrivals and not self._flush_pending:
            self._ask_flush()
        if received >= _FLOOD_BURST:
            select.select((), (), (), _HEAD_START_S)

    def _ask_flush(self) -> None:
        assert self._token is not None
        self._flush_pending = True
        self._token.run_sync_soon(self._flush)

    def _send_commands(self, poller: zmq.Poller, limit: float) -> None:
        commands = self._commands
        done = 0
        while commands and done < limit:
            done += 1
            command = commands.popleft()
            if type(command) is Send:
                self._send(command)
            else:
                self._change(command, poller)

    def _send(self, command: Send) -> None:
        outbox = command.outbox
        outbox.sent += 1
        if outbox.closed and not command.best_effort:
            return
        reason = self.sockets.send(outbox.key, command.frames)
        if reason and not command.best_effort:
            outbox.closed = True
            self._arrivals.append(Unreachable(outbox, reason))

    def _change(self, command: Command, poller: zmq.Poller) -> None:
        if isinstance(command, Connect):
            socket = self.sockets.connect(command.outbox.key, command.endpoint, command.identity)
            poller.register(socket, zmq.POLLIN)
            return
        command.outbox.closed = True
        gone = self.sockets.disconnect(command.outbox.key)
        if gone is not None:
            poller.unregister(gone)
            gone.close(linger=0)
