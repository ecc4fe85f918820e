"""Engines of one run: supervised one for one, listed as membership.

The shell over `EngineDirectory` and `ProcessSupervisor`. An engine that dies is restarted under a
new epoch; one that keeps dying, or leaves a process behind that hangs in the kernel and still holds
its device, is declared failed, and the others serve on; when none is left, the fleet gives up.
Embedded, the caller's process holds the fleet; under `serve` the root does.
"""

from collections.abc import Callable, Sequence, Set

import attrs
import msgspec
import trio

from ...engine.batch_table import table_bytes
from ...engine.config import EngineSettings, worker_module_ahead
from ...engine.control_messages import (
    ENGINE_TO_ROOT,
    ROOT_TO_ENGINE,
    EngineInit,
    EngineReady,
    Passed,
)
from ...nurseries.processes.watched import Watched
from ...transports.links.link_keys import LinkKeys
from ..config import RuntimeSettings
from ..continuity.estate import EngineEstate, Estate
from ..errors import NoEngineLeft
from ..events import ChildFailed, EngineDiffers
from ..launch.child import (
    BecameFailing,
    BecameReady,
    ChildKind,
    GivenUp,
    Gone,
    PlaceEvent,
    Removed,
    Said,
    Suspected,
    WorkerHung,
)
from ..launch.child_end import ChildEnd, EndKind
from ..messages import EngineMembership
from .evidence import Evidence, JudgedHere, positions_in
from .fleet_parts import FleetParts
from .membership import EngineDirectory, FrontendDirectory
from .process_supervisor import ProcessSupervisor
from .quarantine import Quarantine

# By name, not by import: what an engine is made of is not this process's business.
ENGINE_MODULE = "triolet.engine.process.main"


def _laid_out(settings: EngineSettings) -> tuple[object, ...]:
    """Settings that are alike in all places: of the progress page, and of spares' workers."""
    return settings.max_num_seqs, settings.workers, settings.executor


@attrs.define(eq=False)
class EngineFleet:
    """The engines of one run.

    `on_membership` hears of every change.
    """

    parts: FleetParts
    frontends: FrontendDirectory
    on_membership: Callable[[EngineMembership], None]
    # Gets what an engine says of itself while it is watched.
    on_watched: Callable[[str], None] = lambda text: None
    # Hears of lives that requests ended, for who has engines on other machines.
    on_explained: Callable[[Set[int]], None] = lambda epochs: None
    module: str = ENGINE_MODULE
    # Rank of the first engine: other hosts have those below.
    first_rank: int = 0
    # By which its engines come to frontends of another host.
    link_keys: LinkKeys | None = None
    # What outlives engines; who has several fleets one after the other keeps it.
    estate: Estate = attrs.field(factory=EngineEstate)
    # Places whose engine is unlike the others': another device, another instruction set. What the
    # root lays out ahead (`_laid_out`) is alike in all of them.
    settings_of_places: dict[int, EngineSettings] = attrs.field(factory=dict)
    directory: EngineDirectory = attrs.field(factory=EngineDirectory, init=False)
    quarantine: Quarantine = attrs.field(factory=Quarantine, init=False)
    # Where evidence against requests goes, if it is not judged here.
    evidence: Evidence = attrs.field(kw_only=True)
    processes: ProcessSupervisor = attrs.field(init=False)
    # Set when the first engine is ready: from then on a refusal is an outage, not a wrong command.
    ready_once: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Id of the engine that was ready last.
    _numerics_id: str = attrs.field(default="", init=False)

    @evidence.default
    def _judged_here(self) -> Evidence:
        return JudgedHere(
            self.quarantine,
            self.directory,
            self.on_membership,
            self.parts.on_event,
            self.excuse,
        )

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        for of_place in self.settings_of_places.values():
            self._checked(of_place)
        self.processes = ProcessSupervisor(
            owner=self,
            kind=ChildKind(
                role="engine",
                module=self.module,
                ahead=self._ahead(),
                sends=ROOT_TO_ENGINE,
                receives=ENGINE_TO_ROOT,
                table_bytes=table_bytes(settings.engine.max_num_seqs),
                slots=1 + settings.engine.workers,
            ),
            count=settings.engines,
            parts=self.parts,
            estates=(self.estate,),
            first_rank=self.first_rank,
            spares_count=settings.spare_engines if settings.engines else 0,
        )

    @property
    def settings(self) -> RuntimeSettings:
        """The settings of the run."""
        return self.parts.settings

    def settings_of(self, rank: int) -> EngineSettings:
        """The settings of the engine in this place."""
        return self.settings_of_places.get(rank, self.settings.engine)

    def _ahead(self) -> tuple[str, ...]:
        """An engine's first worker starts with it, and imports beside it."""
        if self.module != ENGINE_MODULE:
            return ()  # it is not known what that one has
        return (worker_module_ahead(self.settings.engine),)

    # ---- as the owner of its places

    def handle_starting(self, rank: int, epoch: int, descriptors: Sequence[str]) -> bytes:
        """A new epoch of an engine: listed from before its spawn."""
        restarts = self.processes.places[rank].restarts
        self.on_membership(self.directory.handle_starting(rank, epoch, restarts))
        init = EngineInit(
            run_id=self.parts.run_id,
            rank=rank,
            epoch=epoch,
            settings=self.settings_of(rank),
            membership=self.frontends.snapshot(),
            link_keys=self.link_keys,
        )
        return msgspec.msgpack.encode(init)

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """An engine takes requests, or is going: frontends hear of it, and end or move streams.

        Raises `NoEngineLeft` when the last engine is given up; `BootRefused` instead if none was
        ever ready and the last said why none can be.
        """
        match event:
            case BecameReady(child, payload):
                self.ready_once.set()
                # Frontends may have come since its INIT.
                child.control.publish(self.frontends.snapshot())
                self._handle_ready(rank, msgspec.msgpack.decode(payload, type=EngineReady))
            case Said(message):
                self._handle_message(message)
            case WorkerHung(cause):  # it has another soon; people hear of why
                self.on_membership(self.directory.handle_hung(rank, cause))
            case Suspected():
                self.blame(rank, event)
            case BecameFailing(cause):  # what it had comes free when it is gone
                membership = self.directory.handle_failing(rank, cause)
                if membership is not None:
                    self.on_membership(membership)
            case Gone(end):
                self.on_membership(self.directory.handle_gone(rank, end.cause))
            case GivenUp(end):
                self._handle_given_up(rank, end)
            case Removed():
                self.settings_of_places.pop(rank, None)
                self.on_membership(self.directory.handle_removed(rank))

    def _handle_ready(self, rank: int, engine: EngineReady) -> None:
        self.compare(rank, self.processes.places[rank].epoch, engine)
        self.on_membership(self.directory.handle_ready(rank, engine))

    def compare(self, rank: int, epoch: int, engine: EngineReady) -> None:
        """Say so if an engine, of whichever machine, computes unlike the one before it."""
        before, self._numerics_id = self._numerics_id, engine.numerics_id
        if before not in ("", engine.numerics_id):
            event = EngineDiffers(f"engine {rank}", epoch, engine.numerics_id, before)
            self.parts.on_event(event)

    def _handle_given_up(self, rank: int, end: ChildEnd) -> None:
        """Declare an engine failed; the others serve on, if there are."""
        stuck = end.cause if end.kind is EndKind.STUCK else ""
        self.on_membership(self.directory.handle_failed(rank, stuck))
        any_left = self.processes.any_left()
        if end.kind is EndKind.REFUSED and not (any_left or self.ready_once.is_set()):
            raise end.failure
        self.parts.on_event(ChildFailed(f"engine {rank}", end.reason))
        if not any_left:
            raise NoEngineLeft(str(end.failure)) from end.failure

    def add(self, settings: EngineSettings | None = None) -> int:
        """Have one more engine, with settings of its own or those of the run. Returns its rank."""
        rank = self.processes.add(self.directory.ranks())
        if settings is not None:
            self.settings_of_places[rank] = self._checked(settings)
        return rank

    def _checked(self, settings: EngineSettings) -> EngineSettings:
        assert _laid_out(settings) == _laid_out(self.settings.engine), "it is laid out for all"
        return settings

    def can_remove(self, rank: int) -> bool:
        """Whether there is such an engine, and another one stays: streams would wait for none."""
        staying = {each for each, place in self.processes.places.items() if not place.is_leaving}
        return rank in staying and len(staying) > 1

    def remove(self, rank: int) -> None:
        """Have an engine no more: what it computes is placed elsewhere, at once."""
        assert self.can_remove(rank), "another engine stays"
        if rank in self.processes.ready:
            self.handle(rank, BecameFailing("is removed"))
        self.processes.remove(rank)

    def restart(self, rank: int) -> None:
        """Begin an engine anew; what it computes is placed elsewhere, at once, as when it hangs."""
        if rank in self.processes.ready:
            self.handle(rank, BecameFailing("was stopped"))
        self.processes.restart(rank)

    def _handle_message(self, message: object) -> None:
        if isinstance(message, Watched):
            self.on_watched(message.text)
        elif isinstance(message, Passed):
            self.evidence.handle_passed(message.positions)

    def blame(self, rank: int, event: Suspected) -> None:
        """A step may have ended an engine: its requests are suspects."""
        positions = positions_in(event, self.settings.engine.max_num_seqs)
        self.evidence.handle_death(positions, self.processes.places[rank].epoch)

    def excuse(self, epochs: Set[int]) -> None:
        """Requests ended these lives, of engines on whichever machine: no engine is to blame."""
        self.processes.excuse(epochs)
        self.on_explained(epochs)
