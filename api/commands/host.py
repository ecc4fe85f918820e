"""Host process of `triolet engine --join`.

SIGTERM has its streams go on elsewhere, and then ends its engines: what `systemctl stop`, or a pod
that is moved, asks for.
"""

from ...nurseries.logs import LogSettings, open_log
from ...nurseries.processes.title import set_title
from ...runtime.events import OnEvent
from ...runtime.hosts.host_plan import HostPlan
from ...runtime.hosts.host_process import Host
from .exits import EXIT_OK
from .serve import run_until_signalled


async def serve_as_host(plan: HostPlan, on_event: OnEvent, logs: LogSettings) -> int:
    """Serve until signalled; returns the exit code, raises what `Host.run` raises."""
    set_title(f"host {plan.name}")
    host = Host(plan, on_event)
    async with open_log(logs):
        await run_until_signalled(host, host.leave, on_event, core_dumps=False)
    return EXIT_OK
