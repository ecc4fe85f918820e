"""Counts reach the balancer at a steady pace; an idle engine costs nothing."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triolet.engine.messages import EngineStatistics
from triolet.runtime.frontend.core_client import CoreClient
from triolet.runtime.frontend.ledger import Ledger
from triolet.runtime.frontend.load_balancer import LeastLoaded
from triolet.runtime.frontend.stats_updater import PERIOD_S, run_stats_updater
from triolet.tests.contracts.meshes import CODEC
from triolet.transports.links.channel import Peer
from triolet.transports.links.memory_channel import MemoryMesh

ENGINES = [Peer("engine", 0, 1), Peer("engine", 1, 1)]

# This frontend itself has one request on engine 1.
IN_FLIGHT = {ENGINES[0]: 0, ENGINES[1]: 1}


async def test_the_balancer_hears_the_latest_counts_once_a_period(
    mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    hub = MemoryMesh(CODEC, CODEC).open_hub(Peer("frontend", 0, 1))
    client = CoreClient(hub, Ledger(), LeastLoaded())
    client.balancer.set_engines(ENGINES)
    await nursery.start(run_stats_updater, client)

    def report(running: int) -> None:
        client.statistics[ENGINES[0]] = EngineStatistics(running=running)
        client.statistics_changed.set()

    report(5)
    await wait_all_tasks_blocked()
    # Engine 0 is known to be busy: both choices go to the other one.
    assert [client.balancer.choose(IN_FLIGHT.__getitem__) for _ in range(2)] == [ENGINES[1]] * 2
    report(0)
    await wait_all_tasks_blocked()
    assert client.balancer.choose(IN_FLIGHT.__getitem__) == ENGINES[1]  # not yet heard
    mock_clock.jump(PERIOD_S)
    await wait_all_tasks_blocked()
    assert client.balancer.choose(IN_FLIGHT.__getitem__) == ENGINES[0]
    nursery.cancel_scope.cancel("the test is over")
