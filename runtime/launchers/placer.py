"""Placer: has a cluster do what its head wants, and tells the head what became of it.

The shell over `Placements`. All calls to the cluster are made by one thread at a time, each for as
long as a slice: the loop goes on meanwhile, and an end is not waited for.
"""

import os
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, TypeVarTuple

import attrs
import msgspec
import trio

from ...engine.control_messages import TreeReply, TreeRequest
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import open_service
from ...nurseries.tasks.task_tree import ProcessTree, task_tree
from ...transports.codec import MalformedMessage
from ...transports.control.channel import ControlChannel
from ...transports.control.passed_fds import close_fds
from .messages import WantedHosts
from .placements import ActorAnswer, Placements, PlacerOrder

Arguments = TypeVarTuple("Arguments")
Found = TypeVar("Found")
# How often all actors are asked; a host's own death is known by its link, long before.
LOOK_S = 0.25
# At the end, within the ladder that ends this process.
FAREWELL_S = 1.2


class Cluster(Protocol):
    """Calls to a cluster: they block, for a slice at most where nothing is wrong."""

    def listed(self) -> list[str]:
        """Names of all actors of servers' hosts that there are, of whatever run."""

    def carry_out(self, order: PlacerOrder) -> None:
        """Have an order carried out; what became of it, an answer tells."""

    def look(self, actors: Sequence[str], slice_s: float) -> list[tuple[str, ActorAnswer]]:
        """Ask these actors how they are; answers that came within the slice."""

    def kill_all(self, actors: Sequence[str]) -> None:
        """End these actors at once."""


@attrs.define(eq=False)
class Placer:
    """Placer of one head; `run` is cancelled to end it with all that it placed."""

    control: ControlChannel
    cluster: Cluster
    placements: Placements
    look_s: float = LOOK_S
    _wanted: WantedHosts | None = attrs.field(default=None, init=False)
    _bell: Doorbell = attrs.field(factory=Doorbell, init=False)
    # One thread at a time.
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )

    async def run(self) -> None:
        """Place until cancelled. Raises what the cluster raises when it is gone, and
        `trio.EndOfChannel` when the head has left."""
        async with open_service(self._run_control, name="control"):
            try:
                await self._place()
            except trio.Cancelled:  # else a cluster that is gone for now would cost its hosts
                with trio.move_on_after(FAREWELL_S, shield=True):
                    await self._call(self.cluster.kill_all, list(self.placements.placed))
                raise

    async def _place(self) -> None:
        while self._wanted is None:
            with waiting_for("what is wanted"):
                await self._bell.wait()
        self.placements.handle_wanted(self._wanted.hosts)
        listed = await self._call(self.cluster.listed)
        orders = self.placements.handle_listed(listed, trio.current_time())
        while True:
            self.placements.handle_wanted(self._wanted.hosts)
            began_s = trio.current_time()
            for order in (*orders, *self.placements.next_orders(began_s)):
                await self._call(self.cluster.carry_out, order)
            orders = []
            answers = await self._call(self.cluster.look, list(self.placements.placed), self.look_s)
            now = trio.current_time()
            reports = [
                report
                for actor, answer in answers
                for report in self.placements.handle_answer(actor, answer, now)
            ]
            for report in (*reports, *self.placements.handle_timeout(now)):
                await self.control.send(report)
            with trio.move_on_at(began_s + self.look_s), waiting_for("the next look"):
                await self._bell.wait()

    async def _call(self, call: Callable[[*Arguments], Found], *arguments: *Arguments) -> Found:
        with waiting_for("the cluster"):
            return await trio.to_thread.run_sync(
                call, *arguments, abandon_on_cancel=True, limiter=self._limiter
            )

    async def _run_control(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Background task `control`: what the head wants, and trees."""
        task_status.started()
        while True:
            try:
                with waiting_for("orders"):
                    order, fds = await self.control.receive()
            except MalformedMessage:
                continue  # logged by the channel
            close_fds(fds)
            match order:
                case WantedHosts():
                    self._wanted = order
                    self._bell.ring()
                case TreeRequest(call_id=call_id):
                    text = msgspec.json.encode(self._tree()).decode()
                    await self.control.send(TreeReply(call_id, text))

    def _tree(self) -> ProcessTree:
        facts: dict[str, str | int | float] = {
            actor: placement.state.value for actor, placement in self.placements.placed.items()
        }
        return ProcessTree("placer", os.getpid(), facts=facts, tasks=task_tree())
