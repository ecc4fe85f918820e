"""Runs simulations of takeovers: lives of one frontend, its root, clients, and their judge.

Real are the API with its connections, the slots, the root's `HeldConnections`, the journal and its
adoption, the frontend, a link and an engine with the null executor; simulated are TCP, deaths and
clients. What each client gets, byte by byte, must be what it gets when nothing dies.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import trio

from ....engine.core.engine_core import EngineCore
from ....engine.messages import AddRequest
from ....nurseries.tasks.service import first_error
from ...doubles.bed import open_bed
from ..processes import run_no_compiler
from ..simulation import Bug, _folder, _inputs, nothing_collected
from ..streams import Violation
from ..task_order import VirtualClock, seeded_tasks
from .clients import SEEDS_EACH, UNANSWERED, SimClient
from .plan import Death, Event, Kind, Surroundings, Talk
from .root import LoopExecutor, SimRoot
from .tcp import SimKernel, SimTcp

# Of virtual time: several times what the slowest client, with all its deadlines, takes.
CLIENTS_END_S = 300.0
SETTLES_S = 10.0
LOOK_S = 0.05
# A client that reads nothing: its stream is larger.
STUCK_BYTES = 1000


@attrs.frozen
class TakeoverOutcome:
    """What one simulation came to: what each client got, by its name, and how it was reached."""

    said: dict[str, list[str]]
    reached: Counter[str]
    digest: str
    effects: int


@attrs.define(eq=False)
class TakeoverWorld:
    """One simulation."""

    events: Sequence[Event]
    lines: list[str] | None
    kernel: SimKernel = attrs.field(factory=SimKernel, init=False)
    reached: Counter[str] = attrs.field(factory=Counter, init=False)
    said: dict[str, list[str]] = attrs.field(factory=dict, init=False)
    # {a request's seed: ids under which it was sent to an engine}
    executed: dict[int, set[str]] = attrs.field(factory=dict, init=False)
    root: SimRoot = attrs.field(init=False)
    effects: int = attrs.field(default=0, init=False)
    _digest: Any = attrs.field(factory=hashlib.sha256, init=False)

    @property
    def setup(self) -> Surroundings:
        """The first that is listed, or the plain one."""
        found = (each for each in self.events if isinstance(each, Surroundings))
        return next(found, Surroundings())

    def note(self, what: str) -> None:
        """Of the trace."""
        self.effects += 1
        self._digest.update(what.encode())
        if self.lines is not None:
            self.lines.append(f"{trio.current_time():9.4f} {what}\n")

    def outcome(self) -> TakeoverOutcome:
        """Of the run that is over."""
        return TakeoverOutcome(self.said, self.reached, self._digest.hexdigest(), self.effects)

    async def run(self) -> None:
        """All of it. Raises `Violation`."""
        deaths = [each for each in self.events if isinstance(each, Death)]
        async with (
            open_bed(
                Path(_folder()),
                window_tokens=self.setup.window_tokens,
                inputs=_inputs(),
                parts={
                    "make_core": partial(WatchedCore, on_added=self._handle_added),
                    "make_executor": LoopExecutor,
                    "run_compiler": run_no_compiler,
                },
            ) as bed,
            trio.open_nursery() as nursery,
        ):
            root = self.root = SimRoot(bed, deaths, self.note, self.kernel, self.setup.slots)
            nursery.start_soon(root.run)
            talks = [each for each in self.events if isinstance(each, Talk)]
            with trio.move_on_after(CLIENTS_END_S) as patience:
                async with trio.open_nursery() as clients:
                    for talk in talks:
                        clients.start_soon(self._run_client, talk)
            if patience.cancelled_caught:
                raise Violation(f"connections without end: {', '.join(self._open_ones())}")
            await self._settle()
            self._count()
            nursery.cancel_scope.cancel("the simulation is over")

    async def _run_client(self, talk: Talk) -> None:
        size = STUCK_BYTES if talk.kind is Kind.STUCK else talk.buffer_bytes
        chance, is_fatal = Random(f"{talk.name} {talk.seed}"), talk.kind is Kind.FATAL
        connection = SimTcp(talk.name, chance, size, is_fatal)
        client = SimClient(talk, connection)
        await trio.sleep(talk.at_s)
        await self.root.connect(connection)
        life = self.root.lives[-1].life
        try:
            await client.run()
        except Violation:
            if connection.is_held or not life.is_dead:
                raise
            self.reached["lost without a slot"] += 1
            return
        self.said[talk.name] = [] if talk.kind in UNANSWERED else client.reader.said()
        self.reached[str(talk.kind)] += 1

    def _open_ones(self) -> list[str]:
        talks = [each.name for each in self.events if isinstance(each, Talk)]
        return [name for name in talks if name not in self.said]

    async def _settle(self) -> None:
        """Nothing may be held for clients who are gone."""
        looked = trio.Event()
        with trio.move_on_after(SETTLES_S):
            while self.root.left():
                with trio.move_on_after(LOOK_S):
                    await looked.wait()
        if left := self.root.left():
            raise Violation(f"{left} are held for clients who are gone")
        for seed, ids in self.executed.items():
            if len(ids) > 1:
                raise Violation(
                    f"request {seed % SEEDS_EACH} of one client was executed {len(ids)} times"
                )

    def _count(self) -> None:
        for serving in self.root.lives[:-1]:
            self.reached["crash"] += 1
            self.reached["crash within a store"] += serving.life.is_torn
        for serving in self.root.lives:
            application = serving.application
            if application is not None:
                counters = application.counters
                self.reached["taken over"] += counters.connections_taken_over
                lost = counters.connections_lost - self.reached[str(Kind.FATAL)]
                if (lost or counters.connections_failed) and not serving.life.is_dead:
                    raise Violation("a connection was given up")

    def _handle_added(self, request: AddRequest) -> None:
        """An engine is asked for it."""
        if request.sampling.seed is not None:
            self.executed.setdefault(request.sampling.seed, set()).add(request.request_id)


@attrs.define(eq=False)
class WatchedCore(EngineCore):
    """A core of which another hears what it is asked for."""

    on_added: Callable[[AddRequest], None] = attrs.field(kw_only=True)

    def add(self, frontend: Any, request: AddRequest) -> None:
        """See `EngineCore`."""
        self.on_added(request)
        super().add(frontend, request)


def run_world(
    events: Sequence[Event], bug: Bug = nullcontext, *, lines: list[str] | None = None
) -> TakeoverOutcome:
    """One simulation. Raises `Violation`, and whatever a part of the runtime raised."""
    world = TakeoverWorld(events, lines)
    with nothing_collected(), bug(), seeded_tasks(f"takeover {world.setup.seed}"):
        try:
            trio.run(world.run, clock=VirtualClock())
        except BaseExceptionGroup as group:
            raise first_error(group) from group
    return world.outcome()


@lru_cache(maxsize=64)
def undisturbed(events: tuple[Event, ...]) -> TakeoverOutcome:
    """What these clients get when nothing dies, and nothing is wrong."""
    return run_world(events)


def run_takeovers(
    events: Sequence[Event], bug: Bug = nullcontext, *, lines: list[str] | None = None
) -> TakeoverOutcome:
    """Run it with its deaths, and compare with the undisturbed run. Raises `Violation`."""
    calm = undisturbed(tuple(each for each in events if not isinstance(each, Death)))
    outcome = run_world(events, bug, lines=lines)
    for name, said in outcome.said.items():
        for number, (got, wanted) in enumerate(zip(said, calm.said[name], strict=False)):
            if got != wanted:
                raise Violation(f"{name}: part {number} is {_differs(got, wanted)}")
        if len(said) != len(calm.said[name]):
            raise Violation(f"{name}: got {len(said)} parts, not {len(calm.said[name])}")
    outcome.reached["simulation"] = 1
    return outcome


def _differs(got: str, wanted: str) -> str:
    pairs = enumerate(zip(got, wanted, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(got), len(wanted)))
    begin = max(0, place - 60)
    return f"{got[begin : place + 60]!r}, not {wanted[begin : place + 60]!r}"
