"""Snapshots start empty and share nothing."""

from triolet.runtime.frontend.health import FrontendStatistics, Health, RuntimeStatistics
from triolet.runtime.messages import EngineHealth, EngineState


def test_snapshots_share_no_list() -> None:
    first, second = Health(live=True, ready=False), Health(live=True, ready=False)
    first.engines.append(EngineHealth(0, 1, EngineState.RESTARTING, "died of SIGKILL"))
    assert second.engines == []


def test_statistics_of_two_frontends_share_no_counts() -> None:
    first, second = RuntimeStatistics(), RuntimeStatistics()
    first.frontend.outputs_refused_total["gap"] = 1
    assert second.frontend == FrontendStatistics()
