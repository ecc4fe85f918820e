"""What tests of fleets share: settings of acting engines, and a diary of what was told."""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import msgspec
import trio
import trio.testing

from triolet.engine.config import EngineSettings
from triolet.engine.messages import Drain
from triolet.nurseries.processes.process import Process
from triolet.nurseries.tasks.changes import Changes
from triolet.nurseries.tasks.service import open_service
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode, task_tree
from triolet.runtime.config import RuntimeSettings, SupervisionSettings
from triolet.runtime.events import RunEvent
from triolet.runtime.fleet.engine_fleet import EngineFleet
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.fleet.frontend_fleet import FrontendFleet
from triolet.runtime.fleet.membership import FrontendDirectory
from triolet.runtime.launch.child import Child
from triolet.runtime.launch.child_end import ChildEnd, EndKind
from triolet.runtime.launch.local_child import LocalChild

from ..leaks import check_no_leaks
from ..nurseries.child_programs import look_again

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


def acting_fleet(settings: RuntimeSettings, diary: Diary) -> EngineFleet:
    """A fleet of acting engines that tells a diary."""
    return EngineFleet(
        parts=FleetParts(settings, diary, run_id="r"),
        frontends=FrontendDirectory(),
        on_membership=diary,
        module=ACTING_ENGINE,
    )


@attrs.define(eq=False)
class EngineBed:
    """A fleet of acting engines, and what it told."""

    settings: RuntimeSettings
    diary: Diary = attrs.field(factory=Diary)
    fleet: EngineFleet = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.fleet = acting_fleet(self.settings, self.diary)


FAULT = ChildEnd(EndKind.FAULT, "died")
KILLED = ChildEnd(EndKind.KILLED, "was killed")


def change_parts(fleet: EngineFleet | FrontendFleet, **changes: Any) -> None:
    """Give a fleet that does not run yet other parts, or settings."""
    fleet.parts = fleet.processes.parts = attrs.evolve(fleet.parts, **changes)


@asynccontextmanager
async def running(fleet: EngineFleet | FrontendFleet) -> AsyncIterator[None]:
    """Run a fleet during the block, which must not last; nothing of it is left then."""
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_service(fleet.processes.run, name="fleet"):
            yield


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
