"""What tests of fleets share: settings of acting engines, and a diary of what was told."""

import json
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import Any

import attrs
import msgspec
import trio
import trio.testing

from triolet.engine.config import EngineSettings
from triolet.engine.control_messages import Drain, TreeReply, TreeRequest
from triolet.fuzz.simulator.kernel import Main, SimKernel, SimProcess, event_of
from triolet.nurseries.processes.kernel import Kernel
from triolet.nurseries.processes.process import Process
from triolet.nurseries.tasks.changes import Changes
from triolet.nurseries.tasks.service import open_service, single_errors_unwrapped
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode, task_tree
from triolet.runtime.config import RuntimeSettings, SupervisionSettings
from triolet.runtime.events import RunEvent
from triolet.runtime.fleet.engine_fleet import EngineFleet
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.fleet.form_fleet import FORM_MODULE
from triolet.runtime.fleet.frontend_fleet import FrontendFleet
from triolet.runtime.fleet.membership import FrontendDirectory
from triolet.runtime.launch.child import Child
from triolet.runtime.launch.child_end import ChildEnd, EndKind
from triolet.runtime.launch.local_child import LocalChild
from triolet.runtime.messages import FORMS_TO_ROOT, ROOT_TO_FORMS
from triolet.transports.control.passed_fds import close_fds

from ..leaks import check_no_leaks
from ..nurseries.child_programs import look_again
from .children.acting_engine import act_engine
from .children.acting_frontend import act_frontend
from .children.stage import Stage

ACTING_ENGINE = "triolet.tests.runtime.children.acting_engine"
ACTING_FRONTEND = "triolet.tests.runtime.children.acting_frontend"
# A test that is not over by then hangs.
DEADLINE_S = 60.0
# Restarts follow each other quickly here; the delays have their own tests.
HASTY = SupervisionSettings(restart_limit=2, backoff_min_s=0.001, backoff_max_s=0.002)


def acting_settings(
    *acts: list[str], supervision: SupervisionSettings = HASTY, **engine: Any
) -> RuntimeSettings:
    """Settings for acting engines: for each rank the acts of its runs."""
    model = json.dumps({str(rank): lives for rank, lives in enumerate(acts)})
    return RuntimeSettings(
        engine=EngineSettings(model=model, executor="null", **engine),
        engines=len(acts),
        supervision=supervision,
    )


@attrs.define(eq=False)
class Diary:
    """Everything that was told, in order, and a way to wait for more."""

    told: list[object] = attrs.field(factory=list)
    _more: Changes = attrs.field(factory=Changes)

    def __call__(self, item: object) -> None:
        self.told.append(item)
        self._more.notify()

    def of(self, kind: type[RunEvent] | type[object]) -> list[Any]:
        return [item for item in self.told if isinstance(item, kind)]

    async def wait_for(self, kind: type, count: int = 1) -> Any:
        """The `count`-th of this kind; they may have been told long ago."""
        while len(self.of(kind)) < count:
            await self._more.wait()
        return self.of(kind)[count - 1]


@attrs.define(eq=False)
class ActingKernel(SimKernel):
    """Acting children as tasks of this loop: nothing is spawned.

    Acts that take a process (threads, workers, stops) are for the real one.
    """

    mains: Mapping[str, Main] = attrs.field(init=False)
    chance: Random = attrs.field(factory=lambda: Random(1))
    note: Callable[[str], None] = lambda _: None
    explained: tuple[type[BaseException], ...] = (Exception,)
    # What is killed is gone then, by SIGKILL as well: at once unless a test sets another.
    exits: trio.Event = attrs.field(factory=trio.Event)
    # {pid: its SIGUSR1}
    _cues: defaultdict[int, trio.Event] = attrs.field(factory=lambda: defaultdict(trio.Event))

    def __attrs_post_init__(self) -> None:
        programs = {
            ACTING_ENGINE: act_engine, ACTING_FRONTEND: act_frontend, FORM_MODULE: act_forms
        }  # fmt: skip
        self.exits.set()
        self.mains = {module: partial(self._play, program) for module, program in programs.items()}

    def send_signal(self, pidfd: int, number: signal.Signals) -> None:
        """SIGUSR1 is a cue."""
        if number == signal.SIGUSR1:
            self._cues[self._by_event[event_of(pidfd)].pid].set()
        else:
            super().send_signal(pidfd, number)

    async def _exit_later(self, process: SimProcess, number: signal.Signals) -> None:
        await self.exits.wait()
        self._publish(process, (None, int(number)))

    async def _play(self, program: Callable[[Stage], Awaitable[None]], process: SimProcess) -> None:
        cue = self._cues[process.pid].wait
        leave = partial(self.leave, process)
        await program(Stage(process.control, cue, process.pid, leave, process.fds))


async def act_forms(stage: Stage) -> None:
    """A form process in name alone."""
    handshake = await stage.enter("forms", FORMS_TO_ROOT, ROOT_TO_FORMS)
    await handshake.ready(b"")
    while True:
        message, fds = await stage.control.receive()
        close_fds(fds)
        if isinstance(message, TreeRequest):
            tree = msgspec.json.encode(ProcessTree("forms 0", stage.pid)).decode()
            await stage.control.send(TreeReply(message.call_id, tree))


def acting_fleet(
    settings: RuntimeSettings, diary: Diary, kernel: Kernel, first_rank: int = 0
) -> EngineFleet:
    """A fleet of acting engines that tells a diary."""
    return EngineFleet(
        parts=FleetParts(settings, diary, run_id="r", kernel=kernel),
        frontends=FrontendDirectory(),
        on_membership=diary,
        module=ACTING_ENGINE,
        first_rank=first_rank,
    )


@attrs.define(eq=False)
class EngineBed:
    """A fleet of acting engines, and what it told."""

    settings: RuntimeSettings
    kernel: Kernel = attrs.field(factory=ActingKernel)
    diary: Diary = attrs.field(factory=Diary)
    first_rank: int = 0
    fleet: EngineFleet = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.fleet = acting_fleet(self.settings, self.diary, self.kernel, self.first_rank)


FAULT = ChildEnd(EndKind.FAULT, "died")
KILLED = ChildEnd(EndKind.KILLED, "was killed")


def change_parts(fleet: EngineFleet | FrontendFleet, **changes: Any) -> None:
    """Give a fleet that does not run yet other parts, or settings."""
    fleet.parts = fleet.processes.parts = attrs.evolve(fleet.parts, **changes)


@asynccontextmanager
async def running(fleet: EngineFleet | FrontendFleet) -> AsyncIterator[None]:
    """Run a fleet during the block, which must not last; nothing of it is left then."""
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with (
            running_kernel(fleet.parts.kernel),
            open_service(fleet.processes.run, name="fleet"),
        ):
            yield


@asynccontextmanager
async def running_kernel(kernel: Kernel) -> AsyncIterator[None]:
    """Around all processes; a real one needs nothing."""
    if not isinstance(kernel, ActingKernel):
        yield
        return
    # Cancellation of ours reaches no process.
    scope = trio.CancelScope(shield=True)
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run_processes, kernel, scope)
            with trio.CancelScope(shield=True):
                while kernel.nursery is None:
                    await trio.lowlevel.checkpoint()
            try:
                yield
            finally:
                scope.cancel("the processes are over")
    kernel.close()


async def _run_processes(kernel: ActingKernel, scope: trio.CancelScope) -> None:
    with scope:
        async with trio.open_nursery() as kernel.nursery:
            await trio.sleep_forever()


def process_of(child: Child) -> Process:
    """The process of a child of this machine."""
    assert isinstance(child, LocalChild)
    return child.process


async def facts_of(child: Child) -> dict[str, Any]:
    """What an acting child says it heard; asked again if it was too late to answer."""
    while True:
        try:
            return dict(
                msgspec.json.decode(await child.control.trees.ask(), type=ProcessTree).facts
            )
        except trio.TooSlowError:
            continue


async def wait_waits_for(what: str) -> None:
    """Until some task of this process says that it waits for this."""
    with trio.fail_after(DEADLINE_S):  # of its own: callers may be shielded
        while not any(node.waiting_for == what for node in _walk(task_tree())):
            await look_again()


def _walk(node: TaskNode) -> Iterator[TaskNode]:
    yield node
    for child in node.children:
        yield from _walk(child)


@contextmanager
def dummy_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of nobody's, dead when the block is left."""
    process = subprocess.Popen(["sleep", "1000"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def fill(child: Child) -> None:
    """Send orders until the socket of this child, which reads none, takes no more."""

    async def send() -> None:
        while True:
            await child.control.channel.send(Drain())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel("it is full")
