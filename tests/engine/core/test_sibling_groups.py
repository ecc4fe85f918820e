"""Who waits for whom among the choices of one prompt; any order of events leaves nobody waiting."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from triolet.engine.core.request import Request, RequestStatus, make_request
from triolet.engine.core.sibling_groups import SiblingGroups
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams


def make(choice: int, *, parent: str = "p", frontend: str = "f0") -> Request:
    add = AddRequest(
        request_id=f"r{choice}",
        attempt=1,
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(seed=1),
        choice=choice,
        parent=parent,
    )
    return make_request(frontend, add, arrival=choice, max_model_len=10)


def test_siblings_wait_until_the_first_has_computed_the_prompt() -> None:
    groups, first, second, third = SiblingGroups(), make(0), make(1), make(2)
    assert not groups.stand_aside(first)
    groups.begin(first)
    assert groups.stand_aside(second)
    assert groups.stand_aside(third)
    computing = [groups.is_computing(each) for each in (first, second, make(0, parent="q"))]
    assert computing == [True, False, False]
    assert (second.waits_for_sibling, second.is_schedulable) == (True, False)
    groups.check_invariants([first])
    assert groups.leave(first) == [second, third]
    assert second.is_schedulable
    assert groups.leave(first) == [], "twice is harmless"
    groups.begin(second)
    assert groups.stand_aside(third)


def test_who_ends_while_it_waits_is_not_woken() -> None:
    groups, first, second, third = SiblingGroups(), make(0), make(1), make(2)
    groups.begin(first)
    groups.stand_aside(second)
    groups.stand_aside(third)
    assert groups.leave(second) == []
    assert groups.leave(first) == [third]


def test_parents_of_two_frontends_are_two() -> None:
    groups = SiblingGroups()
    groups.begin(make(0))
    assert not groups.stand_aside(make(1, frontend="f1"))
    assert not groups.stand_aside(make(1, parent="q"))


def test_one_that_waits_for_nobody_who_runs_fails_the_invariants() -> None:
    groups, first = SiblingGroups(), make(0)
    groups.begin(first)
    with pytest.raises(AssertionError):
        groups.check_invariants([])
    first.status = RequestStatus.FINISHED_ABORTED
    with pytest.raises(AssertionError):
        groups.check_invariants([first])


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_nobody_waits_when_nobody_computes(events: list[tuple[int, bool]]) -> None:
    """Each is admitted or waits; each that computes or waits leaves at any time."""
    groups = SiblingGroups()
    members = [make(choice, parent="pq"[choice % 2]) for choice in range(6)]
    running: list[Request] = []
    for index, leaves in events:
        member = members[index]
        if leaves:
            assert all(not sibling.waits_for_sibling for sibling in groups.leave(member))
            running = [request for request in running if request is not member]
        elif not (member in running or member.waits_for_sibling or groups.stand_aside(member)):
            groups.begin(member)
            running.append(member)
        groups.check_invariants(running)
        computing = {member.parent for member in running}
        assert len(computing) == len(running)
        for member in members:
            assert not member.waits_for_sibling or member.parent in computing
