"""A server is started, loses its worker, comes back, and every time is told."""

import pytest

from triolet.bench.options import StartupOptions
from triolet.bench.serving.startup import boot_seconds, measure_startup


def test_the_log_says_how_long_engines_booted() -> None:
    log = "16:36:39 engine 0: ready after 1.8 s (epoch 1)\nx\nengine 0: ready after 0.4 s (epoch 3)"
    assert boot_seconds(log) == [1.8, 0.4]
    assert boot_seconds("engine 0: started in 1.7 s") == []


@pytest.mark.slow
async def test_start_kill_and_ready_again() -> None:
    ended: list[int] = []
    found = await measure_startup(
        None, StartupOptions(quick=True), words=["--executor", "null"], on_ended=ended.append
    )
    assert ended == [1]
    assert found.frontend_s.runs == 1
    assert found.start_s.runs == found.restart_s.runs == found.engine_boot_s.runs == 1
    assert found.engine_boot_s.median < found.restart_s.median + 0.1
    assert set(found.resident_mib) == {
        "root",
        *("frontend 0", "engine 0", "engine 0/worker 0"),
        *("spare frontend 0", "spare engine 0", "spare engine 0/worker 0"),
    }
    assert min(found.resident_mib.values()) > 1
