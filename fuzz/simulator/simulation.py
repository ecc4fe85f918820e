"""Runs simulations: one trio run for each list of events.

Boots the root, lets clients and faults loose, then has the outcome judged. When all faults are
over, every stream must end in bounded time, and then nothing may be left of any request anywhere.
"""

import gc
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any

import attrs
import trio

from ...engine.config import EngineSettings
from ...engine.model.bundled import bundled_model_folder
from ...nurseries.tasks.service import first_error
from ...runtime.config import InputLimits, RuntimeSettings
from ...runtime.text.chat_template import ChatTemplate
from ...runtime.text.input_processor import InputProcessor
from ...runtime.text.template_sandbox import IN_THREAD, RenderLimits
from .blame import Blame, WatchedFleet
from .clients import Clients
from .injector import Injector
from .judge import Judge
from .plan import Event, Setup
from .scene import Scene, Trace
from .streams import Violation
from .takeover.clients import run_talk
from .task_order import VirtualClock, seeded_tasks

Bug = Callable[[], AbstractContextManager[object]]
# From when the faults are over to the end of every stream: restarts, links, and the work itself.
STREAMS_END_S = 60.0
# Several times what the slowest client of a connection, with all its deadlines, takes.
TALKS_END_S = 240.0
BOOT_S = 60.0


@attrs.define(eq=False)
class World:
    """One simulation, from the boot of its root to the judgement."""

    scene: Scene

    async def run(self) -> None:
        """All of it. Raises `Violation`, and what a part of the runtime should never raise."""
        judge = Judge(self.scene, Blame(self.scene))
        async with trio.open_nursery() as nursery:
            self.scene.kernel.nursery = nursery
            nursery.start_soon(self.scene.network.run)
            async with trio.open_nursery() as root_nursery:
                root_nursery.start_soon(self._wait_broken)
                await self._boot(root_nursery, judge)
                await self._live()
                await judge.settle()
                root_nursery.cancel_scope.cancel("the simulation is over")
            judge.check_over()
            nursery.cancel_scope.cancel("the simulation is over")

    async def _wait_broken(self) -> None:
        await self.scene.breaks.wait()
        raise Violation(self.scene.broken)

    async def _boot(self, nursery: trio.Nursery, judge: Judge) -> None:
        await nursery.start(self.scene.root.engines.processes.run)
        await nursery.start(self.scene.root.frontends.processes.run)
        if self.scene.hosts is not None:
            nursery.start_soon(self.scene.hosts.run)
        if self.scene.has_forms:
            await nursery.start(self.scene.root.forms.processes.run)
        with trio.move_on_after(BOOT_S) as patience:
            await self.scene.root.frontends.connections.wait_serving()
            if self.scene.setup.waits_for_all:
                await judge.wait_settled()
        if patience.cancelled_caught:
            raise Violation("no frontend serves")
        for fleet in (self.scene.root.engines, self.scene.root.frontends):
            fleet.processes.start_spares()

    async def _live(self) -> None:
        run_client, injector = Clients(self.scene).run_client, Injector(self.scene)
        async with trio.open_nursery() as clients:
            for request in self.scene.requests:
                clients.start_soon(run_client, request)
            for talk in self.scene.talks:
                clients.start_soon(run_talk, self.scene, talk)
            async with trio.open_nursery() as faults:
                for fault in self.scene.faults:
                    faults.start_soon(injector.run_fault, fault)
            injector.heal()
            patience_s = self.scene.kernel.lingers_s() + STREAMS_END_S
            if self.scene.talks:
                patience_s += TALKS_END_S
            clients.cancel_scope.deadline = trio.current_time() + patience_s
        if clients.cancel_scope.cancelled_caught:
            open_ones = [each.request.name for each in self.scene.histories if not each.end]
            if talks := [
                each.name for each in self.scene.talks if each.name not in self.scene.said
            ]:
                raise Violation(f"connections without end: {', '.join(talks)}")
            raise Violation(f"streams without end: {', '.join(open_ones) or 'refused ones'}")


@attrs.frozen
class Outcome:
    """What one simulation came to."""

    digest: str
    reached: Counter[str]
    # {client: all that came on its connection}
    said: dict[str, list[str]]
    # Stores and system calls of frontends that serve connections.
    effects: int


@cache
def _folder() -> str:
    return str(bundled_model_folder())


@cache
def _inputs() -> InputProcessor:
    """Of the bundled model, read once; it keeps nothing of the prompts it sees.

    None is read in a thread, which would end at a moment of its own.
    """
    settings = RuntimeSettings(
        engine=EngineSettings(model=_folder()), input=InputLimits(inline_characters_max=2**30)
    )
    inputs = InputProcessor.load(settings)
    template = UnhurriedTemplate.load(_folder(), inputs.tokenizer.special_tokens)
    return attrs.evolve(inputs, chat_template=template)


class UnhurriedTemplate(ChatTemplate):
    """Renders for as long as it takes: how long is not decided by a seed."""

    def render(
        self, messages: list[Any], *, limits: RenderLimits = IN_THREAD, **options: Any
    ) -> str:
        """See `ChatTemplate`."""
        return super().render(messages, limits=attrs.evolve(limits, seconds=math.inf), **options)


@contextmanager
def quiet() -> Iterator[None]:
    """Logs nothing: servers that die by the thousand have much to say. Blocks nest."""
    before = logging.root.manager.disable
    if not before:
        logging.disable()  # makes every logger forget what it knows, so once for all seeds
    try:
        yield
    finally:
        if not before:
            logging.disable(before)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Nothing is logged or collected: finalizers run when a simulation is over."""
    with ExitStack() as restored:
        restored.enter_context(quiet())
        if gc.isenabled():
            gc.disable()
            restored.callback(gc.enable)
        yield


def simulate(
    events: Sequence[Event], bug: Bug = nullcontext, *, lines: list[str] | None = None
) -> Outcome:
    """Run one simulation. Raises `Violation` and whatever a part of the runtime raised."""
    seed = next((each.seed for each in events if isinstance(each, Setup)), 0)
    trace = Trace(lines)
    with bug(), nothing_collected(), seeded_tasks(f"tasks {seed}") as order:
        scene = Scene(events, _inputs(), _folder(), WatchedFleet, trace)
        try:
            trio.run(World(scene).run, clock=VirtualClock())
        except BaseExceptionGroup as group:
            error = first_error(group)
            error.add_note(f"trace {trace.digest()}")
            raise error from group
        finally:
            scene.close()
    scene.reached["simulation"] = 1
    scene.reached["batches"] = order.batches
    effects = sum(process.stores.made for process in scene.kernel.processes)
    return Outcome(trace.digest(), scene.reached, scene.said, effects)
