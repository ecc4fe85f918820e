"""Bridge between trio and ZeroMQ: one owner thread for the sockets of one role, run by one task.

Sockets are made, used and closed in the thread alone. Each side has a deque of what the other one
is to do, and a bell, an eventfd, that is rung at most once per sleep: so neither ever waits for the
other. The thread sleeps in one `poll` on its bell ("there are commands", or "stop") and the
descriptors of its sockets; the task in the loop's, as for any descriptor.

The loop rings when its tasks have done all that they can do now, just before it looks for what came
from outside: rung at the first command, the thread would take the GIL in the middle of their work,
and wait for it again at each further one (measured: a fifth of a frontend's CPU for a request).
A loop that never sleeps gives the GIL away in each turn only for a microsecond: the thread wakes up
too late, and begins its 5 ms of patience anew (CPython forces a switch only after 5 ms without one;
seen: two messages sent in five seconds). So the loop itself pauses for a thread that has made no
round for as long.

A socket's descriptor reports a change, not a state: it is quiet once the change was noticed, by any
call. So every socket is asked what it has after all else was done, and only when none has anything
does the thread sleep.

It never waits for a peer either: a send that would block is the end of that peer's link generation
(POLLOUT on a ROUTER is always set while any peer has room).
"""

import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import attrs
import trio

from ..array import Frame
from .zmq_sockets import HeldSockets, Received, Target

# Limits of a round of the thread: neither direction starves the other. A burst is handed to the
# loop whole, at some 3 µs a message, so that other tasks are at most one and a half milliseconds
# away.
_SENDS_PER_ROUND = 256
_RECEIVES_PER_ROUND = 512
# After a burst this large the loop is busy for longer than this with handling it, and more is on
# its way: a pause lets it come together, and spares both threads fights over the GIL at every
# message. Measured, 60 turns of each: 0.92 of blocking pyzmq's rate instead of 0.83, an eighth less
# CPU a message; 50 and 200 us gain less. A message that comes alone never meets it.
_FLOOD_BURST = 64
_FLOOD_PAUSE_S = 100e-6
# A loop that does not sleep pauses for the thread if that made no round for so long: as long as
# CPython lets a thread wait for the GIL (`sys.getswitchinterval`).
PATIENCE_S = 5e-3
# Enough for a thread to wake up on another processor, a virtual one included (some 50 us).
_MAKE_WAY_S = 100e-6


@attrs.define(eq=False)
class LinkOutbox:
    """Messages of one link generation that are on their way out through one thread.

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

    outbox: LinkOutbox
    target: Target


@attrs.define(eq=False)
class Disconnect:
    """Close the socket of this outbox and drop what is queued for it."""

    outbox: LinkOutbox


@attrs.define(eq=False)
class SendFrames:
    """Send one message. `best_effort`: even if the outbox is closed, and a failure is ignored."""

    outbox: LinkOutbox
    frames: Sequence[Frame]
    best_effort: bool = False


Command = Connect | Disconnect | SendFrames


@attrs.define(eq=False)
class Burst:
    """Messages that arrived by the socket `key` (a bound one's number), oldest first."""

    key: Hashable
    messages: list[Received]


@attrs.define(eq=False)
class Unreachable:
    """The peer of this outbox could not be sent to; nothing more will be."""

    outbox: LinkOutbox
    reason: str


Arrival = Burst | Unreachable


def _make_way() -> None:
    select.select((), (), (), _MAKE_WAY_S)


@attrs.define(eq=False)
class Ringer(trio.abc.Instrument):
    """Instrument that trio calls in each turn of its loop, before it waits for descriptors.

    Any error ends the task: trio would go on without the instrument, and the thread sleep for ever.
    """

    bridge: "SocketThread"
    # Tests have their own.
    now_s: Callable[[], float] = time.monotonic
    pause: Callable[[], None] = _make_way
    # Rounds of the thread when it was looked at last, and since when none came while the loop
    # did not sleep (None: it slept).
    _rounds: int = attrs.field(default=0, init=False)
    _busy_since_s: float | None = attrs.field(default=None, init=False)

    def before_io_wait(self, timeout: float) -> None:
        try:
            self._look(timeout)
        except BaseException as error:
            self.bridge.fail(error)
            raise

    def _look(self, timeout: float) -> None:
        self.bridge.ring()
        if timeout or self._rounds != self.bridge.rounds:
            self._rounds = self.bridge.rounds
            self._busy_since_s = None
        elif self._busy_since_s is None:
            self._busy_since_s = self.now_s()
        elif self.now_s() - self._busy_since_s > PATIENCE_S:
            self.pause()
            self._busy_since_s = None


@attrs.define(eq=False)
class SocketThread:
    """Owner thread of sockets. `submit` from the loop; `run` is its task."""

    name: str
    sockets: HeldSockets
    handle: Callable[[Arrival], None]

    # Bounded per outbox (`LinkOutbox.bound`), plus Connect and Disconnect, paced by links' rests.
    _commands: deque[Command] = attrs.field(factory=deque, init=False)
    # Bounded by what the peers may have unacknowledged (`LinkSettings.unacknowledged_max` each).
    _arrivals: deque[Arrival] = attrs.field(factory=deque, init=False)
    # The thread is not in poll(): it will look at the commands before it sleeps.
    _thread_awake: bool = attrs.field(default=True, init=False)
    _thread_bell: int = attrs.field(default=-1, init=False)
    # The same for the task and the arrivals.
    _task_awake: bool = attrs.field(default=True, init=False)
    _task_bell: int = attrs.field(default=-1, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    # {number of a bound socket: where}; None until the sockets are open.
    bound: Mapping[int, str] | None = attrs.field(default=None, init=False)
    # Written by the thread: what it has come round to.
    rounds: int = attrs.field(default=0, init=False)
    _failure: BaseException | None = attrs.field(default=None, init=False)

    # ---- loop

    def submit(self, command: Command) -> bool:
        """Queue one command; never waits. False if the outbox is full or closed.

        Before `run` has started commands are kept; after it has ended they go nowhere.
        """
        outbox = command.outbox
        if type(command) is SendFrames:
            if outbox.queued - outbox.sent >= outbox.bound:
                return False
            outbox.queued += 1
        self._commands.append(command)
        return True

    def ring(self) -> None:
        """Wake the thread if it sleeps and there is something for it; before the loop sleeps."""
        if self._commands and not self._thread_awake:
            self._thread_awake = True
            os.eventfd_write(self._thread_bell, 1)

    def fail(self, error: BaseException) -> None:
        """Have the task raise it; called before the loop sleeps."""
        self._failure = error
        os.eventfd_write(self._task_bell, 1)

    async def run(self, *, task_status: trio.TaskStatus[str]) -> NoReturn:
        """Background task; `started` gives the endpoint that was bound first, or "".

        Never returns unless cancelled. Raises (in a group, as nurseries do) what the thread, the
        ringer or `handle` raised. Resource handling: when it is left, the thread is joined and its
        sockets are closed; what was submitted before is sent as far as that needs no waiting.
        """
        with _open_bell() as self._thread_bell, _open_bell() as self._task_bell:
            ringer = Ringer(self)
            trio.lowlevel.add_instrument(ringer)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._host)
                    try:
                        await self._hand_over(task_status)
                    finally:
                        self._stopping = True
                        os.eventfd_write(self._thread_bell, 1)
            finally:
                # `submit` only queues from here on.
                with suppress(KeyError):  # it has failed
                    trio.lowlevel.remove_instrument(ringer)
        raise AssertionError("_hand_over does not return")

    async def _host(self) -> None:
        # A limiter of its own: two threads per channel must not eat what to_thread gives to others.
        limiter = trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(
            self._main, abandon_on_cancel=False, limiter=limiter, thread_name=self.name
        )

    async def _hand_over(self, task_status: trio.TaskStatus[str]) -> NoReturn:
        await trio.lowlevel.wait_readable(self._task_bell)  # it rings when the sockets are open
        os.eventfd_read(self._task_bell)
        assert self.bound is not None
        task_status.started(next(iter(self.bound.values()), ""))
        arrivals = self._arrivals
        while True:
            # Flag first, then look: what is appended in between is seen here or rings.
            self._task_awake = False
            if not arrivals:
                await trio.lowlevel.wait_readable(self._task_bell)
                os.eventfd_read(self._task_bell)
            if self._failure is not None:
                raise self._failure
            self._task_awake = True
            while arrivals:
                self.handle(arrivals.popleft())
                if arrivals:  # if not, waiting is one
                    await trio.lowlevel.checkpoint()

    # ---- owner thread

    def _main(self) -> None:
        try:
            self.bound = self.sockets.open()
            poller = select.poll()
            poller.register(self._thread_bell, select.POLLIN)
            for socket in self.sockets.sockets().values():
                poller.register(socket, select.POLLIN)
            os.eventfd_write(self._task_bell, 1)
            largest = _RECEIVES_PER_ROUND  # as if: what came before we slept was not reported
            while not self._stopping:
                largest = self._round(poller, largest)
            self._send_commands(poller, math.inf)
        finally:
            self.sockets.close()

    def _round(self, poller: select.poll, largest: int) -> int:
        """Look at everything, at once if there may be more; returns the size of the largest burst.

        `largest`: that of the round before. The bell is rung as the last act before the sleep: rung
        earlier, the loop wakes up while we still need the GIL, and both wait for it in turn.
        """
        # Flag first, then look: a command appended in between is seen here or rings.
        self.rounds += 1
        self._thread_awake = False
        busy = largest == _RECEIVES_PER_ROUND or self._commands or self._stopping
        if self._arrivals and not self._task_awake:
            self._task_awake = True
            os.eventfd_write(self._task_bell, 1)
        if largest >= _FLOOD_BURST:
            select.select((), (), (), _FLOOD_PAUSE_S)
        for descriptor, _ in poller.poll(0 if busy else None):
            if descriptor == self._thread_bell:
                os.eventfd_read(self._thread_bell)
        self._thread_awake = True
        self._send_commands(poller, _SENDS_PER_ROUND)
        largest = 0
        for key, socket in self.sockets.sockets().items():
            burst = self.sockets.receive(socket, _RECEIVES_PER_ROUND)
            if burst:
                self._arrivals.append(Burst(key, burst))
                largest = max(largest, len(burst))
        return largest

    def _send_commands(self, poller: select.poll, limit: float) -> None:
        commands = self._commands
        done = 0
        while commands and done < limit:
            done += 1
            command = commands.popleft()
            if type(command) is SendFrames:
                self._send(command)
            else:
                self._change(command, poller)

    def _send(self, command: SendFrames) -> None:
        outbox = command.outbox
        outbox.sent += 1
        if outbox.closed and not command.best_effort:
            return
        reason = self.sockets.send(outbox.key, command.frames)
        if reason and not command.best_effort:
            outbox.closed = True
            self._arrivals.append(Unreachable(outbox, reason))

    def _change(self, command: Command, poller: select.poll) -> None:
        if isinstance(command, Connect):
            socket = self.sockets.connect(command.outbox.key, command.target)
            poller.register(socket, select.POLLIN)
            return
        command.outbox.closed = True
        gone = self.sockets.disconnect(command.outbox.key)
        if gone is not None:
            poller.unregister(gone)
            gone.close(linger=0)


@contextmanager
def _open_bell() -> Iterator[int]:
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        yield bell
    finally:
        os.close(bell)
