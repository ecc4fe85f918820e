"""The background task that folds the engines' counts into the balancer, at a steady pace.

Counts arrive with outputs, many times a second; a choice between engines needs them some ten times
a second (vLLM's coordinator publishes every 100 ms). Idle engines send nothing, so an idle frontend
does nothing. Must not know how the balancer weighs.
"""

import trio

from ...nurseries.tasks.waiting import waiting_for
from .core_client import CoreClient

# vLLM's cadence; in between, the balancer counts what it sent itself.
PERIOD_S = 0.1


async def run_stats_updater(
    client: CoreClient, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Background task `stats-updater`; never returns unless cancelled."""
    task_status.started()
    while True:
        with waiting_for("new counts"):
            await client.statistics_changed.wait()
        client.statistics_changed = trio.Event()
        for peer, statistics in client.statistics.items():
            client.balancer.handle_statistics(peer, statistics)
        await trio.sleep(PERIOD_S)
