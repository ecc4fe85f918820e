"""A seed is a plan of faults on hosts, and each kind may cost the lives that it says, no others."""

import pytest

from triolet.fuzz.chaos.network.host_plan import (
    Cost,
    HostFault,
    HostFaultKind,
    judge_epochs_of_hosts,
    judge_times_lost,
    make_host_plan,
)

HOSTS = (2, 3)
BEFORE = {0: 1, 1: 4096, 2: 8192}
OF_HOST_2 = frozenset({1})


def fault(kind: HostFaultKind) -> HostFault:
    return HostFault(number=0, kind=kind, host=2, token=1)


def test_a_plan_has_every_kind_once_before_any_comes_again() -> None:
    count = len(HostFaultKind)
    plan = make_host_plan(7, 2 * count, HOSTS)
    assert plan[:5] == make_host_plan(7, 5, HOSTS)
    for half in (plan[:count], plan[count:]):
        assert {each.kind for each in half} == set(HostFaultKind)
    assert {each.host for each in plan} == set(HOSTS)
    assert plan != make_host_plan(8, 2 * count, HOSTS)


@pytest.mark.parametrize("kind", HostFaultKind)
def test_a_fault_costs_what_its_kind_says(kind: HostFaultKind) -> None:
    lost, kept = {**BEFORE, 1: 12288}, BEFORE
    all_lost = {rank: epoch + 12288 for rank, epoch in BEFORE.items()}
    right, wrong = {
        Cost.NOTHING: (kept, lost),
        Cost.ENGINE: (lost, kept),
        Cost.HOST: (lost, kept),
        Cost.LIVES: (lost, all_lost),
        Cost.ALL: (all_lost, lost),
    }[kind.effect.cost]
    assert judge_epochs_of_hosts(fault(kind), OF_HOST_2, BEFORE, right) == []
    assert judge_epochs_of_hosts(fault(kind), OF_HOST_2, BEFORE, wrong) != []


@pytest.mark.parametrize(
    "after",
    [
        {**BEFORE, 1: 12288, 2: 16384},
        {0: 1, 2: 8192},
        {**BEFORE, 1: 12288, 3: 16384},
        {**BEFORE, 1: 2},
    ],
    ids=["another host's", "not back", "one more", "an older epoch"],
)
def test_a_lost_host_costs_no_engine_of_another(after: dict[int, int]) -> None:
    assert judge_epochs_of_hosts(fault(HostFaultKind.HOST_OFF), OF_HOST_2, BEFORE, after) != []


@pytest.mark.parametrize("kind", HostFaultKind)
def test_monitors_count_the_hosts_that_were_lost_and_no_others(kind: HostFaultKind) -> None:
    before, once = {"b": 1, "c": 0}, {"b": 2, "c": 0}
    is_lost = kind.effect.cost.name == "HOST" and kind is not HostFaultKind.LEAVE
    right, wrong = (once, before) if is_lost else (before, once)
    assert judge_times_lost(fault(kind), "b", before, right) == []
    assert judge_times_lost(fault(kind), "b", before, wrong) != []
    assert judge_times_lost(fault(kind), "b", before, {**right, "c": 1}) != []
