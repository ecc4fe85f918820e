"""`triolet serve`: the whole server, until a signal; the exit code tells how it went.

The first SIGINT or SIGTERM drains within the grace time, the second aborts. Signals are taken here
and nowhere below. Must not know HTTP: the root passes connections to frontends that do.
"""

import logging
import resource
import signal
from functools import partial

import trio

from ...nurseries.logs.writer import open_log
from ...nurseries.processes.subreaper import become_subreaper, run_reaper
from ...nurseries.tasks.service import start_service
from ...runtime.events import OnEvent, Stopped
from ...runtime.processes.root import Root, ServePlan
from .exits import EXIT_ENGINE_LOST, EXIT_OK

logger = logging.getLogger(__name__)

# What a shell allows, mostly 1024, is there for programs that wait by select(); a frontend takes
# twice as many connections. More than this nobody needs.
DESCRIPTORS_WANTED = 65_536


async def serve(plan: ServePlan, on_event: OnEvent) -> int:
    """Serve until signalled; returns the exit code, raises what `Root.run` raises."""
    _allow_descriptors()
    become_subreaper()  # workers of an engine that died are ours to reap, below
    root = Root(plan, on_event)
    stop = trio.CancelScope()
    async with open_log(plan.settings.logs), trio.open_nursery() as nursery:
        signals = partial(_take_signals, root, stop)
        await start_service(nursery, signals, name="signals", waits_for="signals")
        await start_service(nursery, run_reaper, root.own_pids, name="reaper")
        with stop:
            await root.run()
        on_event(Stopped())
        nursery.cancel_scope.cancel("the server has ended")
    return EXIT_ENGINE_LOST if root.engine_lost() else EXIT_OK


def _allow_descriptors() -> None:
    """Raise our limit as far as anybody may, and our children's with it; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(DESCRIPTORS_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _take_signals(
    root: Root,
    stop: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `signals`: lives outside the scope that it cancels, so none is lost."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async with trio.open_nursery() as nursery:
            count = 0
            async for number in signals:
                count += 1
                if count == 1:
                    nursery.start_soon(_drain, root, stop, name="drain")
                else:
                    logger.warning("aborting")
                    stop.cancel(f"{signal.Signals(number).name} came again")


async def _drain(root: Root, stop: trio.CancelScope) -> None:
    await root.drain()
    stop.cancel("drained")
