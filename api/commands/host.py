"""Host process of `triolet engine --join`.

SIGTERM drains it (`host_drain`), and then ends its engines: what `systemctl stop`, or a pod that is
moved, asks for. A host of a launcher, whose keys come on stdin, ends so at the end of stdin, and is
killed with the process that started it.
"""

import os
import signal
import sys

import attrs
import trio

from ...nurseries.logs import LogSettings, open_log
from ...nurseries.processes.boot import request_death_signal
from ...nurseries.processes.title import set_title
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.service import open_service
from ...runtime.events import OnEvent
from ...runtime.hosts.host_plan import HostPlan
from ...runtime.hosts.host_process import Host
from .exits import EXIT_OK
from .serve import run_until_signalled

# A read; what a launcher may say behind the keys has no meaning.
_READ_BYTES = 4096


async def serve_as_host(
    plan: HostPlan, on_event: OnEvent, logs: LogSettings, *, is_launched: bool = False
) -> int:
    """Serve until signalled; returns the exit code, raises what `Host.run` raises.

    One that `is_launched` also ends with stdin, and with its parent.
    """
    set_title(f"host {plan.name}")
    host = Host(plan, on_event)
    root = LaunchedHost(host) if is_launched else host
    async with open_log(logs):
        await run_until_signalled(root, host.leave, on_event, core_dumps=False)
    return EXIT_OK


@attrs.frozen
class LaunchedHost:
    """Host whose launcher holds its stdin; as a `ProcessRoot`."""

    host: Host

    async def run(self) -> None:
        """Run the host, until it ends or its stdin does."""
        request_death_signal()
        async with open_service(_run_stdin_watch, name="stdin-watch"):
            await self.host.run()

    def to_reap(self) -> set[int]:
        """Processes of the host that are not reaped yet, by number."""
        return self.host.to_reap()


async def _run_stdin_watch(*, task_status: trio.TaskStatus[None]) -> None:
    """Background task `stdin-watch`: SIGTERM to this process at the end of stdin."""
    stdin = sys.stdin.fileno()
    task_status.started()
    with waiting_for("the end of stdin"):
        while True:
            await trio.lowlevel.wait_readable(stdin)
            if not os.read(stdin, _READ_BYTES):
                break
    signal.raise_signal(signal.SIGTERM)
    with waiting_for("the end of this host"):
        await trio.sleep_forever()
