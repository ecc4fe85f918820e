"""Runner of a load: all sockets of all clients in one task, one wait for all.

A task and a trio stream for each connection would cost more than what is measured. So sockets are
plain and non-blocking, an epoll set watches them, and the one task waits for the set: however many
sockets have something, that is one step of the loop.
"""

import math
import os
import select
import socket
import time
from collections.abc import Callable

import attrs
import trio

from ...fuzz.observers import Cost, costs_of_tree
from .client import Client, ClientFault, Outcome, RequestHistory, Target
from .measures import LoadRun
from .schedule import Load, Schedule

RECEIVE_BYTES = 256 * 2**10
# A new socket is connected within this time, or the server is gone.
CONNECT_S = 5.0
# Connections without any answer after which it makes no sense to go on.
FAILURES_MAX = 100
# Silence of the server after which requests in flight are given up.
PATIENCE_S = 30.0


@attrs.frozen
class ServerGone(Exception):
    """The server cannot be reached, or ends every connection at once; `reason` says how."""

    address: str
    reason: str

    def __str__(self) -> str:
        return f"no server answers on {self.address}: {self.reason}"


@attrs.define(eq=False)
class _Wire:
    """Connection: its socket, its machine, and what the kernel would not take yet."""

    socket: socket.socket
    client: Client
    unsent: bytes = b""
    # How many of the client's free places are in the runner's list.
    offered: int = 0
    # Set once it has answered something: not one of those that only fail.
    has_served: bool = False


@attrs.define(eq=False)
class Runner:
    """Run of a load. `run` is called once."""

    load: Load
    target: Target
    make_client: Callable[[], Client]
    connections: int
    # The server's root process, for its costs; 0 where it is not ours to look at.
    server_pid: int = attrs.field(default=0, kw_only=True)
    patience_s: float = attrs.field(default=PATIENCE_S, kw_only=True)
    # Told how many requests have ended, each time some have.
    on_ended: Callable[[int], None] = attrs.field(default=lambda count: None, kw_only=True)

    histories: list[RequestHistory] = attrs.field(factory=list, init=False)
    _schedule: Schedule = attrs.field(init=False)
    _epoll: select.epoll = attrs.field(factory=select.epoll, init=False)
    # {descriptor: its connection}
    _wires: dict[int, _Wire] = attrs.field(factory=dict, init=False)
    # Free places, the one used last first: a connection appears once for each.
    _places: list[_Wire] = attrs.field(factory=list, init=False)
    _began_s: float = attrs.field(default=0.0, init=False)
    _failures: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._schedule = Schedule(self.load)

    async def run(self) -> LoadRun:
        """Send the whole load and wait for its ends. Raises `ServerGone`.

        Resource handling: every socket is closed afterwards. Cancellation: the server sees its
        clients leave.
        """
        try:
            for _ in range(self.connections):
                await self._connect()
            await self._wait_open()
            before, cpu_s = self._server_costs(), time.process_time()
            self._began_s = trio.current_time()
            await self._run_schedule()
            return LoadRun(
                histories=self.histories,
                elapsed_s=trio.current_time() - self._began_s,
                client_cpu_s=time.process_time() - cpu_s,
                costs_before=before,
                costs_after=self._server_costs(),
            )
        finally:
            for wire in self._wires.values():
                wire.socket.close()
            trio.lowlevel.notify_closing(self._epoll.fileno())
            self._epoll.close()

    async def _run_schedule(self) -> None:
        while not self._schedule.is_over:
            now = self.now()
            while self._places and (ask := self._schedule.take(now)) is not None:
                wire = self._places.pop()
                wire.offered -= 1
                history, data = wire.client.start(ask, now)
                self.histories.append(history)
                self._send(wire, data)
            due_s = self._schedule.next_due_s() if self._places else math.inf
            heard = await self._wait(due_s)
            if not heard and self._schedule.in_flight and due_s - now > self.patience_s:
                self._give_up()
                return
            await self._replace_ended()

    def _server_costs(self) -> dict[str, Cost]:
        """Costs without this process, if it happens to be the root: its cost is the client's."""
        costs = costs_of_tree(self.server_pid) if self.server_pid else {}
        return {name: cost for name, cost in costs.items() if cost.pid != os.getpid()}

    def now(self) -> float:
        """Seconds since its clock started, as in its histories."""
        return trio.current_time() - self._began_s

    async def _wait(self, due_s: float) -> bool:
        """Wait for bytes, at most until `due_s` or patience is over; whether bytes came."""
        seconds = min(max(due_s - self.now(), 0.0), self.patience_s)
        with trio.move_on_after(seconds):
            await trio.lowlevel.wait_readable(self._epoll.fileno())
        ready = self._epoll.poll(0)
        for descriptor, mask in ready:
            wire = self._wires[descriptor]
            if mask & select.EPOLLOUT:
                self._send(wire, b"")
            if mask & ~select.EPOLLOUT:
                self._receive(wire)
        return bool(ready)

    def _give_up(self) -> None:
        """Give up requests in flight; those that were not sent never will be."""
        for history in self.histories:
            history.handle_end(Outcome.LATE, self.now())

    # ---- connections

    async def _connect(self) -> None:
        family = socket.AF_INET6 if ":" in self.target.host else socket.AF_INET
        connection = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            with trio.fail_after(CONNECT_S):
                await connection.connect((self.target.host, self.target.port))
        except (OSError, trio.TooSlowError) as error:
            connection.close()
            raise ServerGone(self.target.address, str(error) or "no answer") from error
        except BaseException:
            connection.close()
            raise
        plain = socket.socket(fileno=os.dup(connection.fileno()))
        connection.close()
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = self._wires[plain.fileno()] = _Wire(plain, self.make_client())
        self._epoll.register(plain, select.EPOLLIN)
        self._send(wire, wire.client.open())
        self._offer(wire)

    async def _wait_open(self) -> None:
        """Every connection takes requests before the clock starts."""
        with trio.move_on_after(CONNECT_S) as scope:
            while len({id(wire) for wire in self._places}) < self.connections:
                await self._wait(math.inf)
                await self._replace_ended()
        if scope.cancelled_caught:
            raise ServerGone(self.target.address, f"no connection opened within {CONNECT_S:g} s")

    def _offer(self, wire: _Wire) -> None:
        """Put the client's free places into the list."""
        while wire.offered < wire.client.free:
            self._places.append(wire)
            wire.offered += 1

    async def _replace_ended(self) -> None:
        """Close what has ended and connect anew; a server may drain and come back."""
        for wire in [wire for wire in self._wires.values() if wire.client.has_ended]:
            self._take_ended(wire)
            if not wire.has_served:
                self._failures += 1
                if self._failures > FAILURES_MAX:
                    raise ServerGone(self.target.address, "it ends every connection")
            descriptor = wire.socket.fileno()
            self._epoll.unregister(descriptor)
            wire.socket.close()
            del self._wires[descriptor]
            self._places = [each for each in self._places if each is not wire]
            if not self._schedule.is_over:
                await self._connect()

    # ---- bytes

    def _send(self, wire: _Wire, data: bytes) -> None:
        wire.unsent += data
        had_more = len(wire.unsent) > len(data)
        try:
            sent = wire.socket.send(wire.unsent) if wire.unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._close(wire, error)
            return
        wire.unsent = wire.unsent[sent:]
        if wire.unsent or had_more:
            watched = select.EPOLLIN | (select.EPOLLOUT if wire.unsent else 0)
            self._epoll.modify(wire.socket, watched)

    def _receive(self, wire: _Wire) -> None:
        try:
            data = wire.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._close(wire, error)
            return
        if not data:
            self._close(wire, None)
            return
        try:
            reply = wire.client.receive(data, self.now())
        except ClientFault as fault:
            self._close(wire, fault)
            return
        wire.has_served = True
        if reply:
            self._send(wire, reply)
        self._take_ended(wire)
        self._offer(wire)

    def _close(self, wire: _Wire, error: Exception | None) -> None:
        reason = type(error).__name__ if error is not None else "end of stream"
        wire.client.handle_closed(reason, self.now())

    def _take_ended(self, wire: _Wire) -> None:
        ended = wire.client.take_ended()
        for _ in ended:
            self._schedule.handle_end()
        if ended:
            self.on_ended(len(ended))
