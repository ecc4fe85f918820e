"""All engines of one run: spawned, supervised one for one, listed as membership.

The shell over `SupervisionPolicy`, `EngineDirectory` and `child_life`. An engine that dies is
restarted under a new epoch; one that keeps dying is declared failed, and the others serve on; when
none is left, the fleet gives up. Embedded, the caller's process holds the fleet; under `serve` the
root does. Must not know requests, HTTP or what an engine computes.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import msgspec
import trio

from ..engine.errors import BootRefused
from ..engine.messages import (
    ENGINE_TO_ROOT,
    ROOT_TO_ENGINE,
    EngineInit,
    EngineReady,
    FrontendMembership,
)
from ..nurseries.background import start_background_task_soon
from ..nurseries.process import ProcessDied, ProcessSpec
from ..nurseries.supervisor import RestartLimitExceeded, supervise
from ..transports.passed_fds import close_fds
from .child_life import ChildLife, ChildPlan, run_child_life
from .config import RuntimeSettings
from .errors import NoEngineLeft
from .events import ChildFailed, ChildReady, OnEvent
from .membership import EngineDirectory, FrontendDirectory
from .messages import EngineMembership

# By name, not by import: what an engine is made of is not this process's business.
ENGINE_MODULE = "triolet.engine.process"


@attrs.define(eq=False)
class EngineFleet:
    """The engines of one run.

    `epochs` is shared by all children of the run: numbers only grow. `on_membership` hears of every
    change, `lives` are the engines that are READY, `booting` those that will be.
    """

    settings: RuntimeSettings
    run_id: str
    epochs: Iterator[int]
    frontends: FrontendDirectory
    on_membership: Callable[[EngineMembership], None]
    on_event: OnEvent
    module: str = ENGINE_MODULE
    directory: EngineDirectory = attrs.field(factory=EngineDirectory, init=False)
    booting: dict[int, ChildLife] = attrs.field(factory=dict, init=False)
    lives: dict[int, ChildLife] = attrs.field(factory=dict, init=False)
    # Whether any engine was ever ready: from then on a refusal is an outage, not a wrong command.
    _has_served: bool = attrs.field(default=False, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `engines`: keep every engine up; never returns unless cancelled.

        Raises `NoEngineLeft` when the last engine was given up; `BootRefused` instead if none was
        ever ready and the last said why none can be.
        Cancellation: every engine is stopped by the ladder, all at once, and reaped.
        """
        async with trio.open_nursery() as nursery:
            for rank in range(self.settings.engines):
                start_background_task_soon(nursery, self._supervise, rank, name=f"engine-{rank}")
            task_status.started()

    def publish_frontends(self, membership: FrontendMembership) -> None:
        """Tell every engine which frontends there are."""
        for life in self.lives.values():
            life.publish(membership)

    async def _supervise(self, rank: int) -> None:
        try:
            await supervise(
                partial(self._live, rank),
                child=f"engine {rank}",
                policy=self.settings.supervision.policy(random.Random()),
                hopeless=(BootRefused,),
            )
        except RestartLimitExceeded as error:
            self._give_up(rank, error.__cause__ or error)

    def _give_up(self, rank: int, last: BaseException) -> None:
        """Declare an engine failed after its `last` failure; the others serve on, if there are."""
        self.on_membership(self.directory.handle_failed(rank))
        any_left = self.directory.any_left()
        if isinstance(last, BootRefused) and not (any_left or self._has_served):
            raise last
        self.on_event(ChildFailed(f"engine {rank}", _why_given_up(last)))
        if not any_left:
            raise NoEngineLeft(str(last)) from last

    async def _live(self, rank: int, *, task_status: trio.TaskStatus[None]) -> None:
        name = f"engine {rank}"
        epoch = next(self.epochs)
        started_s = trio.current_time()
        self.on_membership(self.directory.handle_starting(rank, epoch))

        def ready(life: ChildLife, payload: bytes) -> None:
            self._has_served = True
            del self.booting[rank]
            self.lives[rank] = life
            life.publish(self.frontends.snapshot())
            engine = msgspec.msgpack.decode(payload, type=EngineReady)
            self.on_membership(self.directory.handle_ready(rank, engine))
            self.on_event(ChildReady(name, epoch, trio.current_time() - started_s))
            task_status.started()

        def gone(cause: str) -> None:
            self.booting.pop(rank, None)
            self.lives.pop(rank, None)
            self.on_membership(self.directory.handle_gone(rank, cause))

        plan = ChildPlan(
            spec=ProcessSpec(name, self.module),
            role="engine",
            epoch=epoch,
            sends=ROOT_TO_ENGINE,
            receives=ENGINE_TO_ROOT,
            boot_timeout_s=self.settings.engine.boot_timeout_s,
            ladder=self.settings.times.ladder,
            on_spawned=partial(self.booting.__setitem__, rank),
            on_ready=ready,
            on_gone=gone,
            on_message=_ignore_message,
            on_event=self.on_event,
        )
        await run_child_life(plan, self._init(rank, epoch))

    def _init(self, rank: int, epoch: int) -> bytes:
        return msgspec.msgpack.encode(
            EngineInit(
                run_id=self.run_id,
                rank=rank,
                epoch=epoch,
                settings=self.settings.engine,
                membership=self.frontends.snapshot(),
            )
        )


def _ignore_message(message: object, fds: Sequence[int]) -> None:
    """Engines say nothing else to the root yet."""
    close_fds(fds)


def _why_given_up(last: BaseException) -> str:
    if isinstance(last, ProcessDied):  # without its last words: those are for whoever must mend it
        return f"it died too often; the last time it {last.exit.cause}"
    return str(last)
