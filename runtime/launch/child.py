"""Child of the root as its fleet has it, and the events of its life.

`local_child` is the one of this machine; simulations have others. A child reports its events in
this order, and the fleet that has its place handles them in one `match`.

    Launched       it was spawned, or was a spare; it boots
    BecameReady    it said READY
    Said           it sent a message for its fleet
    WorkerHung     a worker stood still and was killed; the child goes on
    Suspected      what it computed may be what ends it, or a worker of it
    BecameFailing  it hangs, says that it fails, or has ended; once
    Gone           its end was seen, in whatever phase; its workers may be there yet
    Remains        some process of it outlives SIGKILL
"""

import signal
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol

import attrs

from ...nurseries.processes.kernel import KERNEL, Kernel
from ...nurseries.processes.process import LadderTimes
from ...nurseries.processes.spawned import Spawned
from ...nurseries.tasks.task_tree import ProcessTree
from ..events import OnEvent
from .child_control import ChildControl
from .child_end import ChildEnd
from .reported_workers import Remains
from .signals import SignalTarget


class Child(Protocol):
    """Child of the root, from its launch to the end of everything that it started."""

    @property
    def epoch(self) -> int:
        """The number of its life."""

    @property
    def is_ready(self) -> bool:
        """Whether it has said READY."""

    @property
    def control(self) -> ChildControl:
        """Orders, news and questions to it; from `Launched` on."""

    async def wait_ended(self) -> ChildEnd:
        """Launch it, and wait until it and all that it started is gone, or outlives SIGKILL.

        Cancellation: it is stopped in order, and waited for.
        """

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; nothing happens if it is gone."""

    def targets(self) -> Mapping[str, SignalTarget | None]:
        """Name its processes for the signals of people; None: that has ended."""

    def to_reap(self) -> Set[int]:
        """The processes that are children of this one, by number; no other may reap them."""

    def row(self) -> dict[str, object]:
        """Row of the child in a table of processes."""

    async def tree(self) -> ProcessTree:
        """Ask the child for its tree; while it cannot answer, say what is known here."""


@attrs.frozen
class Launched:
    """The child was spawned, or taken over; it boots."""

    child: "Child"


@attrs.frozen
class BecameReady:
    """The child is READY, with this payload."""

    child: "Child"
    payload: bytes


@attrs.frozen
class Said:
    """The child sent a message."""

    message: object


@attrs.frozen
class WorkerHung:
    """A worker of the child was killed, as it stood still; the child goes on."""

    cause: str


@attrs.frozen
class Suspected:
    """Suspicion that what the child computed ends it, or a worker of it unless `is_itself`.

    `table` follows the slots of its progress page: the batches that were in flight.
    """

    table: bytes
    is_itself: bool


@attrs.frozen
class BecameFailing:
    """The child is as good as gone."""

    cause: str


@attrs.frozen
class Gone:
    """The end of the child was seen; its workers may not be gone yet."""

    end: ChildEnd


@attrs.frozen
class GivenUp:
    """The place is restarted no more unless it is revived: `end` is that of its last life.

    After `EndKind.STUCK` it is revived by itself, when what hangs in the kernel is gone.
    """

    end: ChildEnd


@attrs.frozen
class Removed:
    """The place is no more; nothing of it is left."""


ChildEvent = Launched | BecameReady | Said | WorkerHung | Suspected | BecameFailing | Gone | Remains
# Events that the estates and the fleet of a place hear of.
PlaceEvent = BecameReady | Said | WorkerHung | Suspected | BecameFailing | Gone | GivenUp | Removed


@attrs.frozen(kw_only=True)
class ChildKind:
    """Kind of the children of one `role`.

    They run `module`, which starts the modules `ahead` before its own imports (`ProcessSpec`). A
    child and its workers have `slots` on its page, with a table of `table_bytes` behind them.
    `blocked_s`: see `HangWatch`.
    """

    role: str
    module: str
    sends: Sequence[type]
    receives: Sequence[type]
    ahead: tuple[str, ...] = ()
    environment: Mapping[str, str] = attrs.field(factory=dict)
    slots: int = 1
    table_bytes: int = 0
    blocked_s: float | None = None


@attrs.frozen
class ChildTimes:
    """How long a child may take: to boot, to end, and over what it computes (`HangWatch`)."""

    boot_timeout_s: float
    ladder: LadderTimes
    patience_s: float = 60.0


@attrs.frozen(kw_only=True)
class ChildPlan:
    """Child to run: a rank of its kind, with its INIT. `report` gets the events of its life."""

    kind: ChildKind
    rank: int
    epoch: int
    init: bytes
    report: Callable[[ChildEvent], None]
    on_event: OnEvent
    times: ChildTimes
    # Descriptors beside INIT; they stay the caller's.
    attachments: Sequence[int] = ()
    spare: Spawned | None = None
    kernel: Kernel = KERNEL

    @property
    def name(self) -> str:
        """The child's name, for people and the tree."""
        return f"{self.kind.role} {self.rank}"


# `LocalChild`, or a simulation of it.
Launch = Callable[[ChildPlan], Child]
