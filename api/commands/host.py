"""Host process of `triolet engine --join`.

SIGTERM has its streams go on elsewhere, and then ends its engines: what `systemctl stop`, or a pod
that is moved, asks for.
"""

import resource
from functools import partial

import trio

from ...nurseries.logs import LogSettings, open_log
from ...nurseries.processes.orphans import become_subreaper, run_reaper
from ...nurseries.processes.title import set_title
from ...nurseries.tasks.service import start_service
from ...runtime.events import OnEvent, Stopped
from ...runtime.hosts.host_plan import HostPlan
from ...runtime.hosts.host_process import Host
from .exits import EXIT_OK
from .serve import take_signals


async def serve_as_host(plan: HostPlan, on_event: OnEvent, logs: LogSettings) -> int:
    """Serve until signalled; returns the exit code, raises what `Host.run` raises."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    set_title(f"host {plan.name}")
    become_subreaper()
    host, stop = Host(plan, on_event), trio.CancelScope()
    async with open_log(logs), trio.open_nursery() as nursery:
        signals = partial(take_signals, host.leave, stop)
        await start_service(nursery, signals, name="signals", waits_for="signals")
        await start_service(nursery, run_reaper, host.to_reap, name="reaper")
        with stop:
            await host.run()
        on_event(Stopped())
        nursery.cancel_scope.cancel("the host has ended")
    return EXIT_OK
