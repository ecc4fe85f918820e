"""Server process of `triolet serve`: runs the root until a signal, and returns the exit code.

The first SIGINT, SIGTERM or SIGHUP drains within the grace time, the second aborts. Signals are
taken here and nowhere below.
"""

import logging
import resource
import signal
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol

import trio

from ...nurseries.logs import open_log
from ...nurseries.processes.heap import settle_quiet_heap
from ...nurseries.processes.orphans import become_subreaper, run_reaper
from ...nurseries.processes.title import set_title
from ...nurseries.tasks.background import start_background_task_soon
from ...nurseries.tasks.service import start_service
from ...runtime.config import RuntimeSettings
from ...runtime.events import OnEvent, RunEvent, Serving, Stopped
from ...runtime.fleet.elsewhere import MakeElsewhere
from ...runtime.fleet.root import Root, ServePlan
from .exits import EXIT_ENGINE_LOST, EXIT_OK
from .plan import short_cache

logger = logging.getLogger(__name__)

# The soft limit of a shell, mostly 1024, is there for programs that wait by select(); a frontend
# takes twice as many connections. More are not needed.
DESCRIPTORS_WANTED = 65_536
# Signals closer together are one wish: `timeout` sends its own to the command, then to the group.
ONE_WISH_S = 0.2


async def serve(plan: ServePlan, on_event: OnEvent, warnings: Iterable[str] = ()) -> int:
    """Serve until signalled; returns the exit code, raises what `Root.run` raises.

    The log begins with `warnings`.
    """
    _allow_descriptors()
    port = f" on port {plan.port}" if plan.port else ""
    set_title(f"root of {plan.settings.model_name}{port}")
    root = Root(plan, partial(_report, on_event), make_elsewhere=door_of(plan.settings))
    async with open_log(plan.settings.logs):
        if warning := short_cache(plan.settings.engine):
            logger.warning("%s", warning)
        for warning in warnings:
            logger.warning("%s", warning)
        await run_until_signalled(root, root.drain, on_event, core_dumps=plan.settings.core_dumps)
    return EXIT_ENGINE_LOST if root.any_failed() else EXIT_OK


class ProcessRoot(Protocol):
    """Root of processes: a server's, or a host's."""

    async def run(self) -> object:
        """Run until cancelled; leaves no process."""

    def to_reap(self) -> set[int]:
        """The processes that were spawned here and are not reaped yet, by number."""


async def run_until_signalled(
    root: ProcessRoot,
    drain: Callable[[], Awaitable[None]],
    on_event: OnEvent,
    *,
    core_dumps: bool,
) -> None:
    """Run a root until a signal, and drain at the first. Raises what `root.run` raises."""
    if not core_dumps:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    become_subreaper()  # workers of an engine that died are ours to reap, below
    stop = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        signals = partial(take_signals, drain, stop)
        await start_service(nursery, signals, name="signals", waits_for="signals")
        await start_service(nursery, run_reaper, root.to_reap, name="reaper")
        with stop:
            await root.run()
        on_event(Stopped())
        nursery.cancel_scope.cancel("the server has ended")


def door_of(settings: RuntimeSettings) -> MakeElsewhere | None:
    """Maker of the door for other machines; None if none may come, and nothing is loaded for it."""
    if not settings.hosts.are_wanted:
        return None
    from ...runtime.launchers.door import make_join_plan

    return make_join_plan(settings).make


def _report(on_event: OnEvent, event: RunEvent) -> None:
    """Report it. Once it serves: tidy up."""
    on_event(event)
    if isinstance(event, Serving):
        settle_quiet_heap()


def _allow_descriptors() -> None:
    """Raise our limit as far as anybody may, and our children's with it; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(DESCRIPTORS_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def take_signals(
    drain: Callable[[], Awaitable[None]],
    stop: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `signals`: the first drains and then cancels `stop`, the second at once.

    It lives outside the scope that it cancels, so no signal is lost. SIGHUP, of a terminal that is
    closed, is not taken from a server that was started to ignore it (`nohup`).
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    drains_since_s: float | None = None
    with trio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async with trio.open_nursery() as nursery:
            async for number in signals:
                now = trio.current_time()
                if drains_since_s is None:
                    drains_since_s = now
                    start_background_task_soon(nursery, _drain, drain, stop, name="drain")
                elif now - drains_since_s >= ONE_WISH_S:
                    logger.warning("aborting")
                    stop.cancel(f"{signal.Signals(number).name} came again")


async def _drain(drain: Callable[[], Awaitable[None]], stop: trio.CancelScope) -> None:
    await drain()
    stop.cancel("drained")
