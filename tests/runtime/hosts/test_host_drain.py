"""Phases of a host's drain, by what its engines have and by time."""

import pytest

from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.hosts.host_drain import MOVE_S, STUCK_S, DrainPhase, HostDrain, requests_in

GRACE_S = 5.0


def test_what_does_not_end_in_the_grace_is_moved_and_what_cannot_be_is_left_at_last() -> None:
    drain = HostDrain(GRACE_S, begun=100.0)
    looks = [(1.0, 3), (4.9, 3), (5.0, 2), (5.0 + STUCK_S, 1), (19.9, 1), (GRACE_S + MOVE_S, 1)]
    found = [drain.handle_look(count, 100.0 + after_s) for after_s, count in looks]
    moving, stuck, over = DrainPhase.MOVING, DrainPhase.STUCK, DrainPhase.OVER
    assert found == [None, None, moving, stuck, None, over]


@pytest.mark.parametrize("after_s", [0.0, 4.0, 5.5, 9.0])
def test_a_host_that_has_nothing_to_serve_leaves_at_once_and_for_good(after_s: float) -> None:
    drain = HostDrain(GRACE_S, begun=100.0)
    for step in range(int(after_s)):
        drain.handle_look(2, 100.0 + step)
    assert drain.handle_look(0, 100.0 + after_s) is DrainPhase.OVER
    assert drain.handle_look(2, 101.0 + after_s) is None
    assert drain.phase is DrainPhase.OVER


def test_without_a_grace_all_is_moved_at_once() -> None:
    assert HostDrain(0.0, begun=1.0).handle_look(1, 1.0) is DrainPhase.MOVING


@pytest.mark.parametrize("phase", DrainPhase)
def test_each_phase_has_a_sentence(phase: DrainPhase) -> None:
    assert "7 requests" in phase.sentence(7)


def test_requests_are_counted_by_what_engines_say() -> None:
    trees = [
        ProcessTree("engine 4", 1, facts={"running": 2, "waiting": 3}),
        ProcessTree("engine 5", 2, facts={"state": "does not answer"}),
    ]
    assert requests_in(trees) == 5
