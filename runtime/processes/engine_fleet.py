"""All engines of one run: supervised one for one, listed as membership.

The shell over `EngineDirectory` and `ProcessSupervisor`. An engine that dies is restarted under a
new epoch; one that keeps dying, or leaves a process behind that hangs in the kernel and still holds
its device, is declared failed, and the others serve on; when none is left, the fleet gives up.
Embedded, the caller's process holds the fleet; under `serve` the root does.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence, Set

import attrs
import msgspec
import trio

from ...engine.batch_table import read_batches, read_forms, table_bytes
from ...engine.block_names import drop_names
from ...engine.config import worker_module_ahead
from ...engine.errors import BootRefused
from ...engine.messages import ENGINE_TO_ROOT, ROOT_TO_ENGINE, EngineInit, EngineReady, Passed
from ...engine.place_memory import PlaceMemory, open_memory_of_places
from ...nurseries.processes.kernel import KERNEL, Kernel
from ...nurseries.processes.process import ProcessStuck
from ...nurseries.processes.spares import Readiness
from ...nurseries.processes.watched import Watched
from ...nurseries.tasks.supervisor import RestartLimitExceeded
from ...transports.control.passed_fds import close_fds
from ..config import RuntimeSettings
from ..errors import NoEngineLeft
from ..events import ChildFailed, EngineDiffers, OnEvent, RequestRefused
from ..messages import EngineMembership
from .child_process import ChildProcess, run_child_process
from .membership import EngineDirectory, FrontendDirectory
from .process_supervisor import ProcessSupervisor, RunChild
from .quarantine import Quarantine

# By name, not by import: what an engine is made of is not this process's business.
ENGINE_MODULE = "triolet.engine.process.main"


@attrs.define(eq=False)
class EngineFleet:
    """The engines of one run.

    `epochs` is shared by all children of the run: numbers only grow. `on_membership` hears of every
    change.
    """

    settings: RuntimeSettings
    run_id: str
    epochs: Iterator[int]
    frontends: FrontendDirectory
    on_membership: Callable[[EngineMembership], None]
    on_event: OnEvent
    # Gets what an engine says of itself while it is watched.
    on_watched: Callable[[str], None] = lambda text: None
    module: str = ENGINE_MODULE
    # Of the whole run: spares wait until all its processes are ready.
    readiness: Readiness = attrs.field(factory=Readiness)
    run_child: RunChild = run_child_process
    kernel: Kernel = KERNEL
    # Spreads the delays of restarts.
    chance: random.Random = attrs.field(factory=random.Random)
    directory: EngineDirectory = attrs.field(factory=EngineDirectory, init=False)
    quarantine: Quarantine = attrs.field(factory=Quarantine, init=False)
    processes: ProcessSupervisor = attrs.field(init=False)
    # By rank; a successor finds what was there. Empty before `run`.
    _memory: list[PlaceMemory] = attrs.field(factory=list, init=False)
    # Set when the first engine is ready: from then on a refusal is an outage, not a wrong command.
    ready_once: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Of the engine that was ready last.
    _numerics_id: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self.processes = ProcessSupervisor(
            owner=self,
            role="engine",
            module=self.module,
            count=self.settings.engines,
            ahead=self._ahead(),
            sends=ROOT_TO_ENGINE,
            receives=ENGINE_TO_ROOT,
            settings=self.settings,
            epochs=self.epochs,
            on_event=self.on_event,
            table_bytes=table_bytes(self.settings.engine.max_num_seqs),
            slots=1 + self.settings.engine.workers,
            spares_count=self.settings.spare_engines,
            fds_of=self._fds_of,
            readiness=self.readiness,
            run_child=self.run_child,
            kernel=self.kernel,
            chance=self.chance,
        )

    def _ahead(self) -> tuple[str, ...]:
        """An engine's first worker starts with it, and imports beside it."""
        if self.module != ENGINE_MODULE:
            return ()  # it is not known what that one has
        return (worker_module_ahead(self.settings.engine),)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `engines`: see `ProcessSupervisor.run`.

        Raises also `OSError` where there are no descriptors. The engines' memory goes with it.
        """
        with open_memory_of_places(self.settings.engines) as self._memory:
            await self.processes.run(task_status=task_status)

    def _fds_of(self, rank: int) -> Sequence[int]:
        return self._memory[rank].fds if self._memory else ()

    # ---- as the owner of its processes

    def handle_given_up(self, rank: int, error: RestartLimitExceeded) -> None:
        """Declare an engine failed; the others serve on, if there are.

        Raises `NoEngineLeft` after the last engine; `BootRefused` instead if none was ever ready
        and the last said why none can be.
        """
        last = error.__cause__ or error
        if self._memory:
            os.ftruncate(self._memory[rank].cache, 0)
        stuck = f"failed: {last}" if isinstance(last, ProcessStuck) else ""
        self.on_membership(self.directory.handle_failed(rank, stuck))
        any_left = self.processes.any_left()
        if isinstance(last, BootRefused) and not (any_left or self.ready_once.is_set()):
            raise last
        self.on_event(ChildFailed(f"engine {rank}", self.processes.failed[rank]))
        if not any_left:
            raise NoEngineLeft(str(last)) from last

    def handle_starting(self, rank: int, epoch: int) -> bytes:
        """A new epoch of an engine: listed from before its spawn."""
        self.on_membership(self.directory.handle_starting(rank, epoch))
        return msgspec.msgpack.encode(
            EngineInit(
                run_id=self.run_id,
                rank=rank,
                epoch=epoch,
                settings=self.settings.engine,
                membership=self.frontends.snapshot(),
            )
        )

    def handle_ready(self, rank: int, child: ChildProcess, payload: bytes) -> None:
        """An engine takes requests; frontends may have come since its INIT."""
        self.ready_once.set()
        child.publish(self.frontends.snapshot())
        engine = msgspec.msgpack.decode(payload, type=EngineReady)
        before, self._numerics_id = self._numerics_id, engine.numerics_id
        if before not in ("", engine.numerics_id):
            epoch = self.directory.snapshot().engines[rank].epoch
            self.on_event(EngineDiffers(f"engine {rank}", epoch, engine.numerics_id, before))
        self.on_membership(self.directory.handle_ready(rank, engine))

    def handle_gone(self, rank: int, cause: str, *, is_own_fault: bool) -> None:
        """An engine is gone; frontends end or move its streams."""
        self.on_membership(self.directory.handle_gone(rank, cause))

    def restart(self, rank: int) -> None:
        """Begin an engine anew; what it computes is placed elsewhere, at once, as when it hangs."""
        if rank in self.processes.ready:
            self.handle_failing(rank, "was stopped")
        self.processes.restart(rank)

    def handle_message(self, rank: int, message: object, fds: Sequence[int]) -> None:
        """Suspects have passed: frontends need not have the same ones run alone any more."""
        close_fds(fds)
        if isinstance(message, Watched):
            self.on_watched(message.text)
        if not isinstance(message, Passed):
            return  # engines say nothing else to a fleet
        quarantine = self.quarantine
        if quarantine.handle_passed(message.positions, trio.current_time()):
            self.on_membership(
                self.directory.handle_quarantine(quarantine.suspects, quarantine.refused)
            )

    def handle_fault(self, rank: int, epoch: int, table: bytes, *, is_itself: bool) -> Set[int]:
        """A step may have ended an engine: its requests are suspects, told with the next snapshot.

        If the engine's own process ended while a grammar was at work in it, that form is, alone.

        Those of two steps that were in flight died together: which of them is not known. What is
        cached may have been written wild: the next engine finds none of it.
        """
        if self._memory:
            drop_names(self._memory[rank].names)
        rows = self.settings.engine.max_num_seqs
        positions = read_forms(table, rows) if is_itself else {}
        for batch in [] if positions else read_batches(table, rows):
            for row in batch:
                positions[row.content] = max(row.position, positions.get(row.content, 0))
        found = self.quarantine.handle_death(positions, trio.current_time(), epoch)
        for content in found.refused:
            self.on_event(RequestRefused(f"engine {rank}", content.hex()))
        self.directory.handle_quarantine(self.quarantine.suspects, self.quarantine.refused)
        return found.explained

    def handle_hung(self, rank: int, cause: str) -> None:
        """An engine has another worker soon; people hear of why."""
        self.on_membership(self.directory.handle_hung(rank, cause))

    def handle_failing(self, rank: int, cause: str) -> None:
        """An engine is as good as gone; what it had comes free when it is."""
        membership = self.directory.handle_failing(rank, cause)
        if membership is not None:
            self.on_membership(membership)
