"""Supervisor of all processes of one role: runs each rank again and again, under a new epoch.

What the fleets of engines and of frontends share: epochs, spares, the policy's restarts, and the
books of which processes boot and which are ready. What a message or a death means is for the owner.
"""

import os
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from functools import partial
from typing import Protocol

import attrs
import trio

from ...engine.errors import BootRefused
from ...nurseries.processes.death_watch import wait_process_gone
from ...nurseries.processes.hang_watch import ProcessHung
from ...nurseries.processes.kernel import KERNEL, Kernel
from ...nurseries.processes.process import ProcessDied, ProcessSpec, ProcessStuck, open_process
from ...nurseries.processes.spares import Readiness, Spares
from ...nurseries.processes.spawned import selected
from ...nurseries.tasks.background import (
    BackgroundTask,
    start_background_task_soon,
    waiting_for,
)
from ...nurseries.tasks.service import start_service_soon
from ...nurseries.tasks.supervision_policy import Death, SupervisionPolicy
from ...nurseries.tasks.supervisor import RestartLimitExceeded, supervise
from ...transports.control.passed_fds import close_fds
from ..config import RuntimeSettings
from ..events import ChildFailed, ChildReady, OnEvent
from ..messages import EngineState, Place, PlaceState, Role
from .child_process import ChildPlan, ChildProcess, run_child_process

# Variables of a role beside those that any child inherits: frontends export spans.
_VARIABLES: dict[str, tuple[str, ...]] = {"frontend": ("OTEL_", "SSL_CERT_")}
# `run_child_process`, or a simulation of it.
RunChild = Callable[[ChildPlan, bytes], Awaitable[None]]


class ProcessOwner(Protocol):
    """What a fleet decides about its processes; called in the loop, must not block."""

    def handle_starting(self, rank: int, epoch: int) -> bytes:
        """A process is about to be spawned; returns its INIT. Raises `BootRefused` if it cannot."""

    def handle_ready(self, rank: int, child: ChildProcess, payload: bytes) -> None:
        """It is READY, with this payload."""

    def handle_failing(self, rank: int, cause: str) -> None:
        """It hangs, says that it fails, or has ended; once."""

    def handle_hung(self, rank: int, cause: str) -> None:
        """A worker of it was killed, as it stood still; it lives on."""

    def handle_fault(self, rank: int, epoch: int, table: bytes, *, is_itself: bool) -> Set[int]:
        """What it computed may have ended it, or a worker of it unless `is_itself`.

        `table` follows the slots of its progress page. Returns the epochs, this one or earlier ones
        of any rank, of which it is known now that a request ended them: they count toward nothing.
        """

    def handle_gone(self, rank: int, cause: str, *, is_own_fault: bool) -> None:
        """It has ended, in whatever phase; its workers may not be gone yet.

        By its own fault if what it did ended it, or kept it from being ready: not if it was killed
        from outside, or stopped in order.
        """

    def handle_message(self, rank: int, message: object, fds: Sequence[int]) -> None:
        """It sent a message for its owner, who owns the descriptors from now on."""

    def handle_given_up(self, rank: int, error: RestartLimitExceeded) -> None:
        """It is restarted no more unless it is revived; the cause of `error` is its last failure.

        That may be `ProcessStuck`: then it is restarted when what hangs in the kernel is gone. May
        raise.
        """


class WorkerlessOwner:
    """What a fleet need not decide whose processes have no workers and compute no steps."""

    def handle_failing(self, rank: int, cause: str) -> None:
        """See `ProcessOwner`."""

    def handle_hung(self, rank: int, cause: str) -> None:
        """See `ProcessOwner`."""

    def handle_fault(self, rank: int, epoch: int, table: bytes, *, is_itself: bool) -> Set[int]:
        """See `ProcessOwner`."""
        return frozenset()

    def handle_gone(self, rank: int, cause: str, *, is_own_fault: bool) -> None:
        """See `ProcessOwner`."""


def death_of(failure: Exception) -> Death:
    """What the end of a process says about its successor.

    One that hangs in the kernel still holds what it held: see `ProcessSupervisor`.
    """
    match failure:
        case BootRefused():
            return Death.REFUSED
        case ProcessStuck():
            return Death.HOPELESS
        case ProcessDied() if failure.exit.was_killed:
            return Death.KILLED
        case ProcessDied() if failure.exit.was_starved or failure.exit.was_short:
            return Death.SHORTAGE
        case ProcessHung() if not failure.is_own_fault:  # stopped from outside
            return Death.KILLED
        case OSError():  # our own: no fork, no memory, no descriptor
            return Death.SHORTAGE
        case _:
            return Death.FAULT


@attrs.define(eq=False)
class ProcessSupervisor:
    """The processes of one `role`, ranks 0 to `count` - 1, which run `module`.

    `epochs` is shared by all children of the run: numbers only grow. `booting` holds a process from
    its spawn on, `ready` from READY on; neither holds one that has ended. A run begins with one of
    up to `spares_count` warm spares, where there is one, else with a spawn; `readiness` is shared,
    too. `failed` says why of the ranks that are given up.

    A rank whose process outlives SIGKILL is among these until that is gone, and then begins anew.
    None of its code runs any more, but the system call that it was in may be carried out yet, as a
    write to a journal that its successor would have read and cut by then, and its files, sockets
    and devices are open. So no other life has the rank before, unless by an order.
    """

    owner: ProcessOwner
    role: str
    module: str
    count: int
    sends: Sequence[type]
    receives: Sequence[type]
    settings: RuntimeSettings
    epochs: Iterator[int]
    on_event: OnEvent
    run_child: RunChild = run_child_process
    kernel: Kernel = KERNEL
    # Spreads the delays of restarts.
    chance: random.Random = attrs.field(factory=random.Random)
    ahead: tuple[str, ...] = ()  # what each starts before its own imports: see `ProcessSpec`
    spares_count: int = 0
    preparation: bytes = b""  # of the fork server: see `run_child`
    table_bytes: int = 0
    slots: int = 1  # see `ChildPlan`
    blocked_s: float | None = None  # see `ChildPlan`
    gives_up_served: bool = True  # see `SupervisionPolicy`
    # Of a rank: what is sent beside its INIT, and stays the owner's.
    fds_of: Callable[[int], Sequence[int]] = lambda rank: ()
    readiness: Readiness = attrs.field(factory=Readiness)
    spares: Spares = attrs.field(init=False)
    booting: dict[int, ChildProcess] = attrs.field(factory=dict, init=False)
    ready: dict[int, ChildProcess] = attrs.field(factory=dict, init=False)
    failed: dict[int, str] = attrs.field(factory=dict, init=False)
    # {rank: pidfds of what outlives SIGKILL}, ours to close.
    _stuck: dict[int, list[int]] = attrs.field(factory=dict, init=False)
    # {rank: scope}, cancelled to begin it anew, whatever it is at.
    _scopes: dict[int, trio.CancelScope] = attrs.field(factory=dict, init=False)
    # Ranks that were ready once: from then on a refusal is an outage, not a wrong command.
    served: set[int] = attrs.field(factory=set, init=False)
    # Of each rank, since it was begun anew last.
    _policies: dict[int, SupervisionPolicy] = attrs.field(factory=dict, init=False)
    # Of `run`; None before.
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.spares = Spares(
            role=self.role,
            module=self.module,
            count=self.spares_count,
            warm_up_s=self.settings.engine.boot_timeout_s,
            ladder=self.settings.times.ladder,
            readiness=self.readiness,
            ahead=self.ahead,
            environment=self._environment,
            forks=True,
            preparation=self.preparation,
            kernel=self.kernel,
            on_stuck=lambda name, reason: self.on_event(ChildFailed(name, reason)),
        )

    @property
    def _environment(self) -> dict[str, str]:
        return selected(os.environ, _VARIABLES.get(self.role, ()))

    def present(self) -> dict[int, ChildProcess]:
        """Every process that there is now, READY or not."""
        return self.booting | self.ready

    def place(self, rank: int) -> PlaceState:
        """This rank as it is now."""
        state = EngineState.READY if rank in self.ready else EngineState.STARTING
        if rank in self.failed:
            state = EngineState.FAILED
        child = self.present().get(rank)
        place = Place(Role(self.role), rank)
        return PlaceState(place, state, child.epoch if child else 0, self.failed.get(rank, ""))

    def own_pids(self) -> set[int]:
        """The processes that are ours to reap, spares included."""
        return {child.process.pid for child in self.present().values()} | self.spares.pids()

    def is_stuck(self, rank: int) -> bool:
        """Whether a process of this rank hangs in the kernel: the next one waits for its end."""
        return rank in self._stuck

    def any_left(self) -> bool:
        """Whether any rank is up or may come up again by itself.

        What hangs in the kernel before anything was ready ends the start, as any fault then.
        """
        is_awaited = bool(self.served) and bool(self._stuck)
        return len(self.failed) < self.count or is_awaited

    def publish(self, snapshot: object) -> None:
        """Send this numbered full snapshot to every READY process; the latest wins."""
        for child in self.ready.values():
            child.publish(snapshot)

    def start_task(
        self, async_fn: Callable[..., Awaitable[object]], *args: object, name: str
    ) -> BackgroundTask:
        """Start a background task that must not outlive the processes."""
        assert self._nursery is not None, "the processes run"
        return start_background_task_soon(self._nursery, async_fn, *args, name=name)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `engines` or `frontends`: keep every rank up; never returns.

        Raises what the owner raises when a rank is given up.
        Cancellation: every process is stopped by the ladder, all at once, and reaped.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.spares.start_first(nursery)
                for rank in range(self.count):
                    start_service_soon(nursery, self._supervise, rank, name=f"{self.role}-{rank}")
                task_status.started()
        finally:
            for pidfds in self._stuck.values():
                close_fds(pidfds)

    def start_spares(self) -> None:
        """From now on spares are kept, once all are ready; they end with `run`."""
        assert self._nursery is not None, "the processes run"
        self.spares.start(self._nursery)

    def restart(self, rank: int) -> None:
        """Begin this rank anew, with an empty account: stop it in order if it runs, do not wait
        longer for its restart, revive it if it was given up."""
        if rank in self._scopes:  # else it is about to begin
            self._scopes[rank].cancel("an operator restarts it")

    async def _supervise(self, rank: int) -> None:
        """Run one rank again and again, as the policy decides; given up, it may be revived."""
        name = f"{self.role} {rank}"
        while True:
            self.readiness.handle_starting(name)
            given_up: RestartLimitExceeded | None = None
            self._policies[rank] = self._policy(rank)
            with trio.CancelScope() as self._scopes[rank]:
                try:
                    await supervise(
                        partial(self._run_once, rank),
                        child=name,
                        policy=self._policies[rank],
                        death_of=death_of,
                    )
                except RestartLimitExceeded as error:
                    # An order that met its death has it begun anew, unless it is still there.
                    is_ordered = self._scopes[rank].cancel_called
                    if not is_ordered or isinstance(error.__cause__, ProcessStuck):
                        given_up = error
            if given_up is not None:
                self.readiness.handle_ready(name)  # not waited for any more
                await self._wait_revival(rank, given_up)
                del self.failed[rank]

    async def _wait_revival(self, rank: int, given_up: RestartLimitExceeded) -> None:
        """Return when an operator revives this rank, or what hangs in the kernel is gone."""
        self.failed[rank] = _why_given_up(given_up)
        try:
            self.owner.handle_given_up(rank, given_up)
            with trio.CancelScope() as self._scopes[rank]:
                for pidfd in self._stuck.get(rank, ()):
                    with waiting_for("a process that hangs in the kernel to be gone"):
                        await wait_process_gone(pidfd)
                    self.kernel.reap(pidfd)
                if rank not in self._stuck:
                    with waiting_for("a revival"):
                        await trio.sleep_forever()
        finally:
            close_fds(self._stuck.pop(rank, ()))

    def _handle_fault(self, rank: int, epoch: int, table: bytes, *, is_itself: bool) -> None:
        for excused in self.owner.handle_fault(rank, epoch, table, is_itself=is_itself):
            for policy in self._policies.values():
                policy.handle_excused(excused)

    def _policy(self, rank: int) -> SupervisionPolicy:
        return self.settings.supervision.policy(
            self.chance, have_served=rank in self.served, gives_up_served=self.gives_up_served
        )

    async def _run_once(self, rank: int, *, task_status: trio.TaskStatus[None]) -> None:
        """One process of this rank, a spare if there is one; started when it is READY."""
        name, epoch = f"{self.role} {rank}", next(self.epochs)
        self._policies[rank].handle_starting(name, epoch)
        started_s = trio.current_time()

        def handle_ready(child: ChildProcess, payload: bytes) -> None:
            del self.booting[rank]
            self.ready[rank] = child
            self.served.add(rank)
            self.owner.handle_ready(rank, child, payload)
            self.readiness.handle_ready(name)
            self.on_event(ChildReady(name, epoch, trio.current_time() - started_s))
            task_status.started()

        def handle_gone(cause: str, *, is_own_fault: bool) -> None:
            self.booting.pop(rank, None)
            self.ready.pop(rank, None)
            self.readiness.handle_starting(name)
            is_own_fault = is_own_fault and not self._policies[rank].is_excused(name)
            self.owner.handle_gone(rank, cause, is_own_fault=is_own_fault)

        # Before the owner begins anything: from there on what is begun is ended by the child.
        spec = ProcessSpec(
            name,
            self.module,
            ahead=self.ahead,
            environment=self._environment,
            spawned=await self.spares.take(),
            kernel=self.kernel,
        )
        try:
            init = self.owner.handle_starting(rank, epoch)
        except BootRefused:
            await self._end_unused(spec)
            raise
        plan = ChildPlan(
            spec=spec,
            role=self.role,
            epoch=epoch,
            sends=self.sends,
            receives=self.receives,
            boot_timeout_s=self.settings.engine.boot_timeout_s,
            ladder=self.settings.times.ladder,
            fds=self.fds_of(rank),
            on_spawned=partial(self.booting.__setitem__, rank),
            on_ready=handle_ready,
            on_failing=partial(self.owner.handle_failing, rank),
            on_fault=partial(self._handle_fault, rank, epoch),
            on_hung=partial(self.owner.handle_hung, rank),
            on_stuck=lambda pidfd: self._stuck.setdefault(rank, []).append(pidfd),
            on_gone=handle_gone,
            on_message=partial(self.owner.handle_message, rank),
            on_event=self.on_event,
            slots=self.slots,
            table_bytes=self.table_bytes,
            patience_s=self.settings.engine.step_timeout_s,
            blocked_s=self.blocked_s,
        )
        await self.run_child(plan, init)

    async def _end_unused(self, spec: ProcessSpec) -> None:
        """A process that was made for what cannot begin."""
        if spec.spawned is not None:
            async with open_process(spec, ladder=self.settings.times.ladder):
                pass


def _why_given_up(error: RestartLimitExceeded) -> str:
    last = error.__cause__ or error
    if isinstance(last, ProcessDied):  # without its last words, which are in the log of the death
        return f"it died too often; the last time it {last.exit.cause}"
    return str(last)
