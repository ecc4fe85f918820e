"""Dispatcher of accepted connections: each goes to the frontend with the fewest open streams.

The shell over `ConnectionBalancer` and `HeldConnections`. While no frontend is up a connection
waits; a frontend that is dead or hangs is passed by.
"""

import math
import socket
from functools import partial

import attrs
import trio

from ...engine.control_messages import Drain
from ...nurseries.tasks.changes import Changes
from ..continuity.held_connections import HeldConnections
from ..continuity.unavailable import UNAVAILABLE_AFTER_S, answer_unavailable
from ..launch.child import Child
from ..launch.child_control import SEND_TIMEOUT_S
from ..messages import FrontendLoad
from .connection_balancer import ConnectionBalancer
from .process_supervisor import ProcessSupervisor


@attrs.define(eq=False)
class ConnectionDispatcher:
    """Connections of one server, on their way to its frontends, which are `processes`."""

    processes: ProcessSupervisor
    held: HeldConnections
    pass_timeout_s: float = SEND_TIMEOUT_S
    unavailable_s: float = UNAVAILABLE_AFTER_S
    balancer: ConnectionBalancer = attrs.field(factory=ConnectionBalancer, init=False)
    changed: Changes = attrs.field(factory=Changes, init=False)  # see `notify`
    is_draining: bool = attrs.field(default=False, init=False)
    _away_s: float = attrs.field(default=math.inf, init=False)  # when the last ready one went
    _connections: int = attrs.field(default=0, init=False)

    async def pass_connection(self, connection: socket.socket) -> None:
        """Give an accepted connection to the frontend with the fewest open streams.

        It stays the caller's. Waits while no frontend is up, but answers its client
        itself when none was for `unavailable_s`; one that is dead or hangs is passed by. What was
        sent to one that dies is passed to its successor if it is held, also if it was not read;
        else its client sees a reset.
        """
        while True:
            rank = self.balancer.choose()
            if rank is None:
                with trio.move_on_at(self._away_s + self.unavailable_s) as patience:
                    await self.changed.wait()
                if patience.cancelled_caught:
                    return answer_unavailable(connection.fileno())
                continue
            child = self.processes.ready[rank]
            self._connections += 1
            held = self.held.offer(rank, connection.fileno(), self._connections)
            message = self.held.message(self._connections, held)
            try:
                await child.control.send(message, self.pass_timeout_s, [connection.fileno()])
                if held is not None:
                    self.held.handle_taken(rank, held, child.epoch)
                return None
            except trio.BrokenResourceError:
                if self.processes.ready.get(rank) is child:
                    self.balancer.handle_gone(rank)  # dead; its pidfd is about to say so
            except trio.TooSlowError:
                if self.processes.ready.get(rank) is child:
                    self.balancer.handle_not_taken(rank)
            if held is not None:
                self.held.handle_not_taken(rank, held)

    # ---- frontends that come and go

    def handle_ready(self, rank: int, child: Child, *, has_slots: bool) -> None:
        """A frontend takes connections; those of its last life first, if it `has_slots`."""
        self._away_s = math.inf
        if has_slots:
            held = self.held.handle_ready(rank, child.epoch)
            self.balancer.handle_up(rank, passed=len(held))
            pass_again = partial(self.held.pass_again, rank, child, held, self.pass_timeout_s)
            self.processes.start_task(pass_again, name=f"takeover-{rank}")
        else:
            self.held.handle_given_up(rank)
            self.balancer.handle_up(rank)
        if self.is_draining:  # its INIT may be older than the drain
            order = partial(child.control.send_if_possible, Drain(), self.pass_timeout_s)
            self.processes.start_task(order, name="drain")

    def handle_load(self, rank: int, load: FrontendLoad) -> None:
        """A frontend says what it has, and which connections it has ended."""
        self.held.handle_ended(rank, load.ended)
        self.balancer.handle_load(rank, load)
        self.notify()

    def handle_failing(self, rank: int) -> None:
        """A frontend gets no more connections."""
        self.balancer.handle_gone(rank)
        if self.balancer.is_empty:
            self._away_s = min(self._away_s, trio.current_time())

    def end_waiting(self, rank: int) -> None:
        """Connections of this rank wait for no successor any more; clients see why."""
        self.held.end_waiting(rank)
        self.notify()

    def notify(self) -> None:
        """Wake who waits for `changed`: a frontend came, went, or reported its load."""
        self.changed.notify()

    # ---- waits of the root

    async def drain(self) -> None:
        """Have every frontend accept nothing new, those that are yet to come included."""
        self.is_draining = True
        async with trio.open_nursery() as nursery:
            for child in self.processes.ready.values():
                nursery.start_soon(child.control.send_if_possible, Drain(), self.pass_timeout_s)

    async def wait_drained(self) -> None:
        """Return when no connection is open, or waits for a successor."""
        while not self.balancer.is_idle(self.held.ranks()):
            await self.changed.wait()

    async def wait_serving(self) -> None:
        """Return when some frontend can send requests to some engine."""
        while not self.balancer.can_serve():
            await self.changed.wait()

    async def wait_idle(self, rank: int) -> None:
        """Return when no connection of this frontend is busy."""
        while self.balancer.is_busy(rank):
            await self.changed.wait()
