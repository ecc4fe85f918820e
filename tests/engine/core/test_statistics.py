"""The totals of an engine core, and what its scheduler holds."""

import pytest

from triolet.engine.core.statistics import Statistics
from triolet.tests.engine.core.driver import make_scheduler, new_request


def test_snapshot_has_the_scheduler_counts() -> None:
    scheduler = make_scheduler(max_num_seqs=2, max_num_batched_tokens=8, kv_blocks=4)
    statistics = Statistics(requests_added=3, requests_finished=1)
    request = new_request(credit=1)
    scheduler.add(request)
    assert statistics.snapshot(scheduler).waiting == 1
    assert scheduler.schedule() is not None
    scheduler.complete()
    request.token_ids.append(1)
    snapshot = statistics.snapshot(scheduler)
    assert (snapshot.step, snapshot.waiting, snapshot.running, snapshot.paused) == (1, 0, 1, 1)
    assert (snapshot.kv_blocks, snapshot.kv_blocks_free) == (4, 3)
    assert (snapshot.requests_added, snapshot.requests_finished) == (3, 1)


def test_requests_that_vanish_fail_the_invariants() -> None:
    statistics = Statistics(requests_added=3, requests_finished=1, requests_aborted=1)
    statistics.check_invariants(1)
    with pytest.raises(AssertionError):
        statistics.check_invariants(0)
