"""Supervisor of all processes of one role: runs each rank again and again, under a new epoch.

The shell over a `FleetPlace` for each rank, shared by the fleets of engines, frontends and form
processes: it launches children, waits, and keeps spares. What a message or a death means is for the
fleet that owns it.
"""

import itertools
import os
from collections.abc import Awaitable, Callable, Container, Sequence, Set
from contextlib import ExitStack
from functools import partial
from typing import Protocol

import attrs
import trio

from ...nurseries.processes.process import ProcessSpec, open_process
from ...nurseries.processes.spares import Spares
from ...nurseries.processes.spawned import Spawned, selected
from ...nurseries.tasks.background import (
    BackgroundTask,
    start_background_task_soon,
    waiting_for,
)
from ...nurseries.tasks.service import start_service_soon
from ...nurseries.tasks.supervision_policy import SupervisionPolicy
from ..continuity.estate import Estate
from ..control.calls import EngineState, Place, PlaceState, Role
from ..events import ChildFailed, ChildReady
from ..launch.child import (
    BecameFailing,
    BecameReady,
    Child,
    ChildEvent,
    ChildKind,
    ChildPlan,
    GivenUp,
    Gone,
    Launched,
    PlaceEvent,
    Removed,
)
from ..launch.child_end import ChildEnd, EndKind, end_of
from ..launch.reported_workers import Remains
from ..launch.signals import SignalTarget, target_of
from .fleet_parts import FleetParts
from .place import FleetPlace, State

# Variables of a role beside those that any child inherits: frontends export spans, placers place.
_VARIABLES: dict[str, tuple[str, ...]] = {
    "frontend": ("OTEL_", "SSL_CERT_"),
    "placer": ("RAY_",),
}


class PlaceOwner(Protocol):
    """Fleet's decisions about its places; called in the loop, must not block."""

    def handle_starting(self, rank: int, epoch: int, descriptors: Sequence[str]) -> bytes:
        """A life is about to be launched. Returns its INIT.

        `descriptors` names what estates pass beside it, behind the progress page.
        """

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """Something happened in the place of this rank. May raise at `GivenUp`."""


@attrs.define(eq=False)
class ProcessSupervisor:
    """The processes of one `kind`, at first `count` of them, with ranks from `first_rank`.

    A run begins with one of up to `spares_count` warm spares, where there is one, else with a
    spawn. `gives_up_served`: see `SupervisionPolicy`.

    A rank whose process outlives SIGKILL is given up until that is gone, and then begins anew.
    None of its code runs any more, but the system call that it was in may be carried out yet, as a
    write to a journal that its successor would have read and cut by then, and its files, sockets
    and devices are open. So no other life has the rank before, unless by an order.
    """

    owner: PlaceOwner
    kind: ChildKind
    count: int
    parts: FleetParts
    first_rank: int = 0
    estates: Sequence[Estate] = ()
    spares_count: int = 0
    preparation: bytes = b""  # of the fork server: see `Spares`
    gives_up_served: bool = True
    spares: Spares = attrs.field(init=False)
    places: dict[int, FleetPlace] = attrs.field(init=False)
    # By rank, from the launch to the end.
    _children: dict[int, Child] = attrs.field(factory=dict, init=False)
    # Processes that outlive SIGKILL, by rank; ours to close.
    _remains: dict[int, list[Remains]] = attrs.field(factory=dict, init=False)
    # {rank: scope}, cancelled to begin it anew, whatever it is at.
    _scopes: dict[int, trio.CancelScope] = attrs.field(factory=dict, init=False)
    # Nursery of `run`; None before.
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        environment = selected(os.environ, _VARIABLES.get(self.role, ()))
        self.kind = attrs.evolve(self.kind, environment=environment)
        ranks = range(self.first_rank, self.first_rank + self.count)
        self.places = {rank: self._new_place(rank) for rank in ranks}
        self.spares = Spares(
            role=self.role,
            module=self.kind.module,
            count=self.spares_count,
            warm_up_s=self.parts.settings.engine.boot_timeout_s,
            ladder=self.parts.settings.times.ladder,
            readiness=self.parts.readiness,
            ahead=self.kind.ahead,
            environment=environment,
            forks=True,
            preparation=self.preparation,
            kernel=self.parts.kernel,
            on_stuck=lambda name, reason: self.parts.on_event(ChildFailed(name, reason)),
        )

    def _new_place(self, rank: int) -> FleetPlace:
        return FleetPlace(f"{self.role} {rank}", self._policy(have_served=False))

    def _policy(self, *, have_served: bool) -> SupervisionPolicy:
        return self.parts.policy(have_served=have_served, gives_up_served=self.gives_up_served)

    # ---- what there is

    @property
    def role(self) -> str:
        """The role of these processes."""
        return self.kind.role

    @property
    def ready(self) -> dict[int, Child]:
        """Processes by rank, from READY to their end."""
        return {rank: child for rank, child in self._children.items() if self.places[rank].is_up}

    @property
    def booting(self) -> dict[int, Child]:
        """Processes by rank, from their launch to READY."""
        up = self.ready
        return {rank: child for rank, child in self._children.items() if rank not in up}

    @property
    def failed(self) -> dict[int, str]:
        """Why the ranks that are given up are."""
        return {rank: each.why for rank, each in self.places.items() if each.why}

    @property
    def have_served(self) -> bool:
        """Whether any process was ready."""
        return any(each.has_served for each in self.places.values())

    def present(self) -> dict[int, Child]:
        """Every process that there is now, READY or not."""
        return dict(self._children)

    def place(self, rank: int) -> PlaceState:
        """This rank as it is now."""
        place, child = self.places[rank], self._children.get(rank)
        state = EngineState.READY if place.is_up else EngineState.STARTING
        if place.why:
            state = EngineState.FAILED
        epoch = child.epoch if child else 0
        return PlaceState(Place(Role(self.role), rank), state, epoch, place.why)

    def to_reap(self) -> set[int]:
        """The processes that are ours to reap, by number, spares included."""
        return self.spares.to_reap().union(*(each.to_reap() for each in self._children.values()))

    def targets(self) -> dict[str, SignalTarget | None]:
        """Every process that people may send signals, by place, workers and spares included."""
        targets: dict[str, SignalTarget | None] = {}
        for rank, place in self.places.items():
            child = self._children.get(rank)
            targets |= {place.name: None} if child is None else child.targets()
        spares = self.spares.processes()
        return targets | {name: target_of(process) for name, process in spares.items()}

    def is_stuck(self, rank: int) -> bool:
        """Whether a process of this rank hangs in the kernel: the next one waits for its end."""
        return rank in self._remains

    def any_left(self) -> bool:
        """Whether any rank is up or may come up again by itself.

        What hangs in the kernel before anything was ready ends the start, as any fault then.
        """
        is_awaited = self.have_served and bool(self._remains)
        return len(self.failed) < len(self.places) or is_awaited

    # ---- orders

    def publish(self, snapshot: object) -> None:
        """Send this numbered full snapshot to every READY process; the latest wins."""
        for child in self.ready.values():
            child.control.publish(snapshot)

    def excuse(self, epochs: Set[int]) -> None:
        """Requests have ended these lives, of any rank: they count toward nothing."""
        for epoch in epochs:
            for place in self.places.values():
                place.handle_excused(epoch)

    def restart(self, rank: int) -> None:
        """Begin this rank anew, with an empty account: stop it in order if it runs, do not wait
        longer for its restart, revive it if it was given up."""
        if rank in self._scopes:  # else it is about to begin
            self._scopes[rank].cancel("an operator restarts it")

    def add(self, taken: Container[int] = ()) -> int:
        """Have one more place, of the lowest rank that is free and not `taken` elsewhere; it begins
        at once, if these run."""
        used = itertools.count(self.first_rank)
        rank = next(each for each in used if each not in self.places and each not in taken)
        self.places[rank] = self._new_place(rank)
        if self._nursery is not None:
            self._begin(self._nursery, rank)
        return rank

    def remove(self, rank: int) -> None:
        """Have a place no more: its process is stopped in order. It is `Removed` when that is gone.

        One whose process outlives SIGKILL waits for the end of that.
        """
        self.places[rank].handle_leaving()
        if rank in self._scopes:  # else it is about to begin
            self._scopes[rank].cancel("the place is removed")

    def start_task(
        self, async_fn: Callable[..., Awaitable[object]], *args: object, name: str
    ) -> BackgroundTask:
        """Start a background task that must not outlive the processes."""
        assert self._nursery is not None, "the processes run"
        return start_background_task_soon(self._nursery, async_fn, *args, name=name)

    def start_spares(self) -> None:
        """Keep spares from now on, once all are ready; they end with `run`."""
        assert self._nursery is not None, "the processes run"
        self.spares.start(self._nursery)

    # ---- background tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task of a fleet: keep every rank up; never returns.

        Raises what the owner raises when a rank is given up; `OSError` where there is no memory or
        descriptor for an estate.
        Cancellation: every process is stopped by the ladder, all at once, and reaped.
        """
        with ExitStack() as opened:
            for estate in self.estates:
                opened.enter_context(estate.open(self.count))
            opened.callback(self._close_all_remains)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.spares.start_first(nursery)
                for rank in self.places:
                    self._begin(nursery, rank)
                task_status.started()
                with waiting_for("orders"):  # there may be no rank, yet
                    await trio.sleep_forever()

    def _begin(self, nursery: trio.Nursery, rank: int) -> None:
        start_service_soon(nursery, self._supervise, rank, name=f"{self.role}-{rank}")

    async def _supervise(self, rank: int) -> None:
        """Run one rank again and again, as its place decides; given up, it may be revived.

        Returns when the place is no more.
        """
        place = self.places[rank]
        while not place.is_leaving:
            self.parts.readiness.handle_starting(place.name)
            place.begin(self._policy(have_served=place.has_served), trio.current_time())
            end: ChildEnd | None = None
            with trio.CancelScope() as self._scopes[rank]:
                end = await self._run_until_given_up(rank, place)
            # An order that met its death has it begun anew, unless it is still there.
            is_ordered = self._scopes[rank].cancel_called
            if end is not None and (not is_ordered or end.kind is EndKind.STUCK):
                self.parts.readiness.handle_ready(place.name)  # not waited for any more
                await self._wait_revival(rank, end)
        self._tell(rank, Removed())
        del self.places[rank]
        self._scopes.pop(rank, None)
        self.parts.readiness.handle_ready(place.name)  # not waited for any more

    async def _run_until_given_up(self, rank: int, place: FleetPlace) -> ChildEnd:
        """Returns the end of the last life. Cancellation: the present one is ended."""
        while True:
            end = await self._run_once(rank, place)
            place.handle_over(end, trio.current_time())
            if place.state is State.GIVEN_UP:
                return end
            with waiting_for(f"the time to restart {place.name}"):
                await trio.sleep_until(place.due_s)

    async def _wait_revival(self, rank: int, end: ChildEnd) -> None:
        """Return when an operator revives this rank, or what hangs in the kernel is gone."""
        try:
            self._tell(rank, GivenUp(end))
            with trio.CancelScope() as self._scopes[rank]:
                for remains in self._remains.get(rank, ()):
                    await remains.wait_gone(self.parts.kernel)
                if rank not in self._remains:
                    with waiting_for("a revival"):
                        await trio.sleep_forever()
        finally:
            self._close_remains(rank)

    async def _run_once(self, rank: int, place: FleetPlace) -> ChildEnd:
        """Run a life of this rank, to its end; returns how it ended, or why it could not begin."""
        try:
            child = await self._launch(rank, place)
            return await child.wait_ended()
        except Exception as error:  # a supervisor's work is failures
            return end_of(error)

    async def _launch(self, rank: int, place: FleetPlace) -> Child:
        epoch, began_s = next(self.parts.epochs), trio.current_time()
        # Before the owner begins anything: from there on what is begun is ended by the child.
        spare = await self.spares.take()
        try:
            attached: dict[str, int] = {}
            for estate in self.estates:
                attached.update(estate.handle_starting(rank, epoch))
            place.handle_starting(epoch)
            init = self.owner.handle_starting(rank, epoch, list(attached))
        except BaseException:
            if spare is not None:
                await self._end_unused(place.name, spare)
            raise
        return self.parts.launch(
            ChildPlan(
                kind=self.kind,
                rank=rank,
                epoch=epoch,
                init=init,
                attachments=list(attached.values()),
                report=partial(self._handle, rank, began_s),
                on_event=self.parts.on_event,
                times=self.parts.times,
                spare=spare,
                kernel=self.parts.kernel,
            )
        )

    async def _end_unused(self, name: str, spare: Spawned) -> None:
        """A process that was made for what cannot begin."""
        spec = ProcessSpec(name, self.kind.module, spawned=spare, kernel=self.parts.kernel)
        async with open_process(spec, ladder=self.parts.times.ladder):
            pass

    def _handle(self, rank: int, began_s: float, event: ChildEvent) -> None:
        """An event of the present life of this rank: into the books, then to who has it."""
        place, now = self.places[rank], trio.current_time()
        match event:
            case Launched(child):
                self._children[rank] = child
                return
            case Remains():
                self._remains.setdefault(rank, []).append(event)
                return
            case BecameReady():
                place.handle_ready(now)
            case BecameFailing():
                place.handle_failing()
            case Gone(end):
                self._children.pop(rank, None)
                self.parts.readiness.handle_starting(place.name)
                event = Gone(place.handle_gone(end))
        self._tell(rank, event)
        if isinstance(event, BecameReady):
            self.parts.readiness.handle_ready(place.name)
            self.parts.on_event(ChildReady(place.name, place.epoch, now - began_s))

    def _tell(self, rank: int, event: PlaceEvent) -> None:
        for estate in self.estates:
            estate.handle(rank, event)
        self.owner.handle(rank, event)

    def _close_all_remains(self) -> None:
        for rank in list(self._remains):
            self._close_remains(rank)

    def _close_remains(self, rank: int) -> None:
        for remains in self._remains.pop(rank, ()):
            remains.close()
