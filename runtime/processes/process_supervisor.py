"""One kind of process of a run, by rank: each lives again and again under a new epoch.

What the fleets of engines and of frontends share: epochs, spawning, the policy's restarts, and the
books of who boots and who lives. What a life means is its owner's affair. Must not know requests,
memberships or what the processes do.
"""

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import attrs
import trio

from ...engine.errors import BootRefused
from ...nurseries.processes.process import ProcessSpec
from ...nurseries.tasks.supervisor import supervise
from ..config import RuntimeSettings
from ..events import ChildReady, OnEvent
from .child_process import ChildLife, ChildPlan, run_child_life
from .spares import CalmBell, Spares


class LivesOwner(Protocol):
    """Who is told of the lives; called in the loop, must not block."""

    def handle_starting(self, rank: int, epoch: int) -> bytes:
        """A life is about to be spawned; returns its INIT."""

    def handle_ready(self, rank: int, life: ChildLife, payload: bytes) -> None:
        """It is READY, with this payload."""

    def handle_gone(self, rank: int, cause: str) -> None:
        """It has ended, in whatever phase; its workers may not be gone yet."""

    def handle_message(self, rank: int, message: object, fds: Sequence[int]) -> None:
        """It said something that concerns its owner, who now owns the descriptors."""


@attrs.define(eq=False)
class SupervisedLives:
    """The processes of one `role`, which run `module`.

    `epochs` is shared by all children of the run: numbers only grow. `booting` holds a life from
    its spawn on, `lives` from READY on; neither holds one that has ended. A life begins with one of
    up to `spares_count` warm spares, where there is one, else with a spawn; `calm` is shared, too.
    """

    owner: LivesOwner
    role: str
    module: str
    sends: Sequence[type]
    receives: Sequence[type]
    settings: RuntimeSettings
    epochs: Iterator[int]
    on_event: OnEvent
    ahead: tuple[str, ...] = ()  # what each starts before its own imports: see `ProcessSpec`
    spares_count: int = 0
    calm: CalmBell = attrs.field(factory=CalmBell)
    spares: Spares = attrs.field(init=False)
    booting: dict[int, ChildLife] = attrs.field(factory=dict, init=False)
    lives: dict[int, ChildLife] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.spares = Spares(
            role=self.role,
            module=self.module,
            count=self.spares_count,
            warm_up_s=self.settings.engine.boot_timeout_s,
            ladder=self.settings.times.ladder,
            calm=self.calm,
            ahead=self.ahead,
        )

    def present(self) -> dict[int, ChildLife]:
        """Every process that there is now, READY or not."""
        return self.booting | self.lives

    def own_pids(self) -> set[int]:
        """The processes that are ours to reap, spares included."""
        return {life.process.pid for life in self.present().values()} | self.spares.pids()

    def publish(self, snapshot: object) -> None:
        """Have every READY process told this numbered full snapshot, the latest wins."""
        for life in self.lives.values():
            life.publish(snapshot)

    async def keep_up(self, rank: int) -> None:
        """Live again and again, as the policy decides. Never returns unless cancelled.

        Raises `RestartLimitExceeded` from the last failure; `BootRefused` is one that no restart
        follows.
        """
        child = f"{self.role} {rank}"
        self.calm.missing(child)
        try:
            await supervise(
                partial(self._live, rank),
                child=child,
                policy=self.settings.supervision.policy(random.Random()),
                hopeless=(BootRefused,),
            )
        finally:
            self.calm.settled(child)

    async def _live(self, rank: int, *, task_status: trio.TaskStatus[None]) -> None:
        name = f"{self.role} {rank}"
        epoch = next(self.epochs)
        started_s = trio.current_time()

        def ready(life: ChildLife, payload: bytes) -> None:
            del self.booting[rank]
            self.lives[rank] = life
            self.owner.handle_ready(rank, life, payload)
            self.calm.settled(name)
            self.on_event(ChildReady(name, epoch, trio.current_time() - started_s))
            task_status.started()

        def gone(cause: str) -> None:
            self.booting.pop(rank, None)
            self.lives.pop(rank, None)
            self.calm.missing(name)
            self.owner.handle_gone(rank, cause)

        init = self.owner.handle_starting(rank, epoch)
        plan = ChildPlan(
            spec=ProcessSpec(name, self.module, ahead=self.ahead, spawned=self.spares.take()),
            role=self.role,
            epoch=epoch,
            sends=self.sends,
            receives=self.receives,
            boot_timeout_s=self.settings.engine.boot_timeout_s,
            ladder=self.settings.times.ladder,
            on_spawned=partial(self.booting.__setitem__, rank),
            on_ready=ready,
            on_gone=gone,
            on_message=partial(self.owner.handle_message, rank),
            on_event=self.on_event,
        )
        await run_child_life(plan, init)
