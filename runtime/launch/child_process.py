"""Child process of the root while it runs, and the events of its life.

What launches a child (`launcher`, or a simulation of it) reports its events, in this order; the
fleet that has its place handles them in one `match`.

    Launched       it was spawned, or was a spare; it boots
    BecameReady    it said READY
    Said           it sent a message for its fleet
    WorkerHung     a worker stood still and was killed; the child goes on
    Suspected      what it computed may be what ends it, or a worker of it
    BecameFailing  it hangs, says that it fails, or has ended; once
    Gone           its end was seen, in whatever phase; its workers may be there yet
    Remains        some process of it outlives SIGKILL
"""

import contextlib
import signal
from collections.abc import Callable, Sequence

import attrs
import trio

from ...engine.messages import Failing, TreeReply, WorkersChanged
from ...nurseries.processes.hang_watch import Hang
from ...nurseries.processes.process import Process
from ...nurseries.processes.progress_page import ProgressPage
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.task_tree import ProcessTree
from ...transports.codec import MalformedMessage
from ...transports.control.channel import ControlChannel
from ...transports.control.passed_fds import close_fds
from .boot_progress import BootProgress
from .child_end import ChildEnd
from .reported_workers import Remains, ReportedWorkers
from .tree_calls import TreeCalls


@attrs.frozen
class Launched:
    """The child was spawned, or taken over; it boots."""

    child: "ChildProcess"


@attrs.frozen
class BecameReady:
    """The child is READY, with this payload."""

    child: "ChildProcess"
    payload: bytes


@attrs.frozen
class Said:
    """The child sent a message; its receiver owns the descriptors."""

    message: object
    fds: Sequence[int] = ()


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


ChildEvent = Launched | BecameReady | Said | WorkerHung | Suspected | BecameFailing | Gone | Remains
# What the estates and the fleet of a place hear of.
PlaceEvent = BecameReady | Said | WorkerHung | Suspected | BecameFailing | Gone | GivenUp


@attrs.define(eq=False)
class ChildProcess:
    """A running child: its process, its control channel, and questions to it.

    `report` gets `Said` of every control message that is not answered here.
    """

    process: Process
    control: ControlChannel
    report: Callable[["ChildEvent"], None]
    epoch: int = 0
    # The page has the batches of its steps; None in simulations that have none.
    page: ProgressPage | None = None
    # The wait for its end, cancelled when it was killed for a hang: that end has a deadline.
    patience: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # The latest hang that was found; its reason names the worker.
    hung: Hang | None = attrs.field(default=None, init=False)
    # The fleet knows that the child is going, and the batches of its steps.
    is_failing: bool = attrs.field(default=False, init=False)
    # Progress from the spawn on; it has ended when `ready` is set.
    boot: BootProgress = attrs.field(factory=lambda: BootProgress(trio.current_time()), init=False)
    ready: bool = attrs.field(default=False, init=False)
    workers: ReportedWorkers = attrs.field(factory=ReportedWorkers, init=False)
    _trees: TreeCalls = attrs.field(
        default=attrs.Factory(lambda self: TreeCalls(self.control), takes_self=True), init=False
    )
    # The newest snapshot of each kind that was not sent yet: the latest wins.
    _snapshots: dict[type, object] = attrs.field(factory=dict, init=False)
    _snapshot_set: Doorbell = attrs.field(factory=Doorbell, init=False)

    def publish(self, snapshot: object) -> None:
        """Have this full snapshot sent, in place of one of its kind that still waits."""
        self._snapshots[type(snapshot)] = snapshot
        self._snapshot_set.ring()

    async def send_snapshots(self) -> None:
        """Send what is published; a child that does not read delays no other."""
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                with waiting_for("news for it"):
                    await self._snapshot_set.wait()
                while self._snapshots:
                    snapshot = self._snapshots.pop(next(iter(self._snapshots)))
                    await self.control.send_patiently(snapshot)

    async def send(self, order: object, timeout_s: float, fds: Sequence[int] = ()) -> None:
        """Send one order, with duplicates of `fds`.

        Raises `trio.BrokenResourceError` if the child is dead, `trio.TooSlowError` if it takes
        nothing for `timeout_s`, or we have no room for it: it got nothing of it.
        """
        with trio.fail_after(timeout_s):
            try:
                await self.control.send_patiently(order, fds)
            except trio.ClosedResourceError as error:
                raise trio.BrokenResourceError(f"{self.process.spec.name} has ended") from error

    async def send_if_possible(self, order: object, timeout_s: float) -> None:
        """Send an order that a dead or hanging child does not need either."""
        with contextlib.suppress(trio.BrokenResourceError, trio.TooSlowError):
            await self.send(order, timeout_s)

    async def tree(self) -> str:
        """The child's process tree as JSON text. Raises `trio.TooSlowError`, `BrokenResource…`."""
        return await self._trees.ask()

    def boot_tree(self) -> ProcessTree:
        """Tree of a child that boots and cannot be asked yet."""
        boot = self.boot
        facts: dict[str, str | int | float] = {
            "epoch": self.epoch,
            "phase": boot.phase,
            "done": f"{boot.fraction:.0%}",
            "since": f"{boot.phase_s(trio.current_time()):.1f} s",
        }
        workers = [ProcessTree("worker", pid) for pid in self.workers.pids]
        return ProcessTree(self.process.spec.name, self.process.pid, facts, processes=workers)

    async def read_control(self) -> None:
        """Take the child's messages until it closes its end; then no question is answered."""
        try:
            while True:
                try:
                    with waiting_for("its messages"):
                        message, fds = await self.control.receive()
                except MalformedMessage:
                    continue  # logged by the channel; a question has its deadline
                except (trio.EndOfChannel, trio.BrokenResourceError):
                    return  # its pidfd tells the rest
                self.handle_message(message, fds)
        finally:
            self._trees.handle_ended()

    def handle_message(self, message: object, fds: Sequence[int]) -> None:
        """Apply one control message."""
        match message:
            case WorkersChanged(pids=pids):
                self.workers.handle_changed(pids, fds)
                if self.hung is not None and self.hung.pid not in (self.process.pid, *pids):
                    self.hung = None  # another has its place
            case TreeReply():
                close_fds(fds)
                self._trees.handle_reply(message)
            case Failing(cause=cause, is_own_fault=is_own_fault):
                close_fds(fds)
                self.handle_failing(cause, is_own_fault=is_own_fault)
            case _:
                self.report(Said(message, fds))

    def handle_failing(self, cause: str, *, is_own_fault: bool) -> None:
        """The child is going, or gone: whom to suspect is reported before its requests move."""
        if self.is_failing:
            return
        self.is_failing = True
        is_itself = self.process.exit is not None  # else it says that a worker ended it
        if (hung := self.hung) is not None:  # what it says of a worker is that this was killed
            cause, is_own_fault, is_itself = hung.reason, hung.is_own_fault, not hung.place
        if is_own_fault and self.page is not None:
            self.report(Suspected(self.page.read_table(), is_itself))
        self.report(BecameFailing(cause))

    def kill(self) -> None:
        """Send SIGKILL to the process itself; nothing happens if it is gone."""
        self.process.send_signal(signal.SIGKILL)
