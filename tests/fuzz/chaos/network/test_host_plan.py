"""A seed is a plan of faults on hosts, and each kind may cost the lives that it says, no others."""

import sys
from typing import Any

import attrs
import pytest

from triolet.engine.errors import InvalidParameter
from triolet.fuzz.chaos.network.host_campaign import plan_of_hosts
from triolet.fuzz.chaos.network.host_plan import (
    Cost,
    HostFault,
    HostFaultKind,
    judge_epochs_of_hosts,
    judge_times_lost,
    make_host_plan,
)
from triolet.fuzz.chaos.options import ChaosOptions

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


def test_hosts_of_another_build_leave_first_each_once() -> None:
    options = ChaosOptions(hosts=3, faults=4, host_build=sys.executable)
    plan = plan_of_hosts(options, HOSTS)
    assert [each.host for each in plan[:2]] == list(HOSTS)
    assert {each.kind for each in plan[:2]} == {HostFaultKind.LEAVE}
    assert [each.number for each in plan] == [0, 1, 2, 3]
    assert plan_of_hosts(attrs.evolve(options, faults=1), HOSTS) == plan[:2]
    later = plan_of_hosts(attrs.evolve(options, host_build=""), HOSTS)
    assert [each.kind for each in later[:2]] == [each.kind for each in plan[2:]]
    assert options.words_of_replay().count(sys.executable) == 1


@pytest.mark.parametrize("changes", [{"hosts": 0}, {"host_build": "/nowhere/python"}])
def test_another_build_is_a_program_for_hosts(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="needs --hosts and a program"):
        ChaosOptions(**{"hosts": 3, "host_build": sys.executable, **changes})


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
