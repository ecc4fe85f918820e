"""Who may join, with which ranks and epochs; what is listed of hosts, by events in any order."""

import itertools
from random import Random
from typing import Any

import attrs
import pytest

from triolet.runtime.control.calls import EngineState
from triolet.runtime.fleet.membership import EngineDirectory
from triolet.runtime.hosts.host_directory import (
    EPOCHS_OF_BLOCK,
    HostAdmission,
    HostDirectory,
    HostFault,
    HostId,
)
from triolet.runtime.hosts.host_messages import HOST_WIRE, HostSnapshot, Join, JoinRefused
from triolet.runtime.hosts.lease import HostState
from triolet.runtime.messages import EngineMember, EngineMembership

from ..children.acting_engine import READY


def join(name: str = "b", incarnation: int = 7, engines: int = 2, **changes: Any) -> Join:
    offer = Join(
        wire=HOST_WIRE,
        version="0.1.0",
        name=name,
        incarnation=incarnation,
        engines=engines,
        model_hash="aa",
    )
    return attrs.evolve(offer, **changes)


def directory() -> HostDirectory:
    return HostDirectory(model_hash="aa", version="0.1.0", epochs=itertools.count(5))


def admitted(
    hosts: HostDirectory, offer: Join, taken: frozenset[int] = frozenset()
) -> HostAdmission:
    found = hosts.handle_join(offer, 1.0, taken)
    assert isinstance(found, HostAdmission), found
    hosts.check_invariants()
    return found


def snapshot(number: int, epochs: dict[int, int], removed: dict[int, int] | None = None) -> Any:
    members = [
        EngineMember(rank=rank, epoch=epoch, state=EngineState.READY, latest=READY)
        for rank, epoch in epochs.items()
    ]
    return HostSnapshot(number, EngineMembership(number, members, removed=removed or {}))


def test_hosts_get_the_lowest_ranks_in_a_row_and_epochs_of_their_own() -> None:
    hosts = directory()
    first = admitted(hosts, join("b"), frozenset({0, 3}))
    assert (first.ranks, first.epochs) == (range(1, 3), range(5, 5 + EPOCHS_OF_BLOCK))
    second = admitted(hosts, join("c", engines=3), frozenset({0, 3}))
    assert second.ranks == range(4, 7)
    assert second.epochs.start == first.epochs.stop
    assert hosts.handle_epochs_wanted(first.host) == range(
        second.epochs.stop, second.epochs.stop + EPOCHS_OF_BLOCK
    )
    hosts.handle_lost(first.host)
    third = admitted(hosts, join("b", incarnation=8), frozenset({0, 3}))
    assert third.ranks == first.ranks
    assert third.epochs.start > second.epochs.stop
    assert hosts.handle_epochs_wanted(first.host) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wire": HOST_WIRE + 1}, "its messages are of version 3, the head's of 2"),
        ({"wire": HOST_WIRE - 2}, "its messages are of version 0, the head's of 2"),
        ({"engine_wire": 3}, "its engines' messages are of version 3, the head's frontends' of 1"),
        ({"model_hash": "bb"}, "its model's files are bb, the head's aa"),
        ({"name": "host b"}, "letters, digits, dots, dashes and underscores"),
        ({"engines": 0}, "it has 0 engines, not 1 to 1024"),
        ({"engines": 1025}, "it has 1025 engines, not 1 to 1024"),
        ({"name": "c"}, "host c is here already, as incarnation 7"),
        ({"name": "d"}, "incarnation 9 of host d was given up, and may not come back"),
    ],
)
def test_who_may_not_join_hears_of_the_one_fact(changes: dict[str, Any], reason: str) -> None:
    hosts = directory()
    admitted(hosts, join("c"))
    hosts.handle_lost(admitted(hosts, join("d", incarnation=9)).host)
    refused = hosts.handle_join(join(**{"incarnation": 9, **changes}), 2.0, set())
    assert isinstance(refused, JoinRefused)
    assert reason in refused.reason
    assert set(hosts.hosts) == {"c"}


def test_neighbouring_wires_and_other_versions_may_join_and_are_named() -> None:
    hosts = directory()
    assert admitted(hosts, join("b", wire=HOST_WIRE - 1)).differs == ""
    differs = admitted(hosts, join("c", version="0.2.0")).differs
    assert differs == "host c has version 0.2.0, the head 0.1.0"


def test_who_asks_twice_is_answered_twice_the_same() -> None:
    hosts = directory()
    assert admitted(hosts, join()) == admitted(hosts, join())


def test_a_silent_host_is_given_up_for_its_next_incarnation() -> None:
    hosts = directory()
    first = admitted(hosts, join())
    hosts.handle_snapshot(first.host, snapshot(1, {0: first.epochs[0]}))
    hosts.handle_state(first.host, HostState.SILENT)
    second = admitted(hosts, join(incarnation=8))
    assert second.replaced == first.host
    assert hosts.members("b") == []
    assert not hosts.handle_state(first.host, HostState.UP)
    assert not hosts.handle_snapshot(first.host, snapshot(2, {0: first.epochs[0]}))
    assert isinstance(hosts.handle_join(join(), 3.0, set()), JoinRefused)


def test_the_latest_snapshot_of_the_present_incarnation_counts() -> None:
    hosts = directory()
    host, epochs = (found := admitted(hosts, join())).host, found.epochs
    assert hosts.handle_snapshot(host, snapshot(2, {0: epochs[3]}, {1: epochs[0]}))
    assert not hosts.handle_snapshot(host, snapshot(1, {0: epochs[1]}))
    assert not hosts.handle_snapshot(HostId("b", 6), snapshot(9, {0: epochs[1]}))
    (member,) = hosts.members("b")
    assert (member.epoch, member.host, member.silent) == (epochs[3], "b", False)
    assert hosts.removed("b") == {1: epochs[0]}


def test_what_a_silent_host_has_ready_is_silent() -> None:
    hosts = directory()
    host, epochs = (found := admitted(hosts, join())).host, found.epochs
    shot = snapshot(1, {0: epochs[0], 1: epochs[1]})
    shot.membership.engines[1] = attrs.evolve(
        shot.membership.engines[1], state=EngineState.RESTARTING
    )
    hosts.handle_snapshot(host, shot)
    assert hosts.handle_state(host, HostState.SILENT)
    assert not hosts.handle_state(host, HostState.SILENT)
    assert [member.silent for member in hosts.members("b")] == [True, False]
    assert hosts.handle_state(host, HostState.UP)
    assert [member.silent for member in hosts.members("b")] == [False, False]
    assert hosts.handle_state(host, HostState.LOST)
    assert hosts.members("b") == []
    assert hosts.removed("b") == {}


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        (snapshot(1, {2: 5}), "host b lists engine 2, which is not one of its own"),
        (snapshot(1, {0: 4}), "host b lists epoch 4, which it was not given"),
        (snapshot(1, {}, {9: 5}), "host b lists engine 9, which is not one of its own"),
        (snapshot(1, {}, {0: 4}), "host b lists epoch 4, which it was not given"),
    ],
)
def test_what_was_not_given_to_a_host_is_a_fault_of_its(listed: HostSnapshot, reason: str) -> None:
    hosts = directory()
    host = admitted(hosts, join()).host
    with pytest.raises(HostFault, match=reason):
        hosts.handle_snapshot(host, listed)
    assert hosts.members("b") == []
    twice = snapshot(1, {0: 5})
    twice.membership.engines.append(twice.membership.engines[0])
    with pytest.raises(HostFault, match="lists a rank twice"):
        hosts.handle_snapshot(host, twice)


def test_keys_are_of_hosts_that_are_here() -> None:
    hosts = directory()
    first, second = admitted(hosts, join("b")), admitted(hosts, join("c"))
    hosts.handle_key(first.host, b"k")
    assert hosts.link_keys() == {b"k": frozenset({0, 1})}
    hosts.handle_key(second.host, b"l")
    hosts.handle_lost(first.host)
    hosts.handle_key(first.host, b"k")
    assert hosts.link_keys() == {b"l": frozenset({2, 3})}


@attrs.define(eq=False)
class Walk:
    """Hosts that come, list engines, and go, as seen by the directory of engines."""

    chance: Random
    hosts: HostDirectory = attrs.field(factory=directory)
    engines: EngineDirectory = attrs.field(factory=EngineDirectory)
    number: int = 0
    # {rank: the highest epoch that was ever listed, or removed}
    known: dict[int, int] = attrs.field(factory=dict)

    def step(self) -> None:
        name, self.number = self.chance.choice("bcd"), self.number + 1
        known = self.hosts.hosts.get(name)
        if known is None or self.chance.random() < 0.05:
            offer = join(name, self.number, self.chance.randint(1, 4))
            self.hosts.handle_join(offer, 0.0, {0})
        elif self.chance.random() < 0.6:
            host, ranks = known.admission.host, list(known.admission.ranks)
            epochs = [each for block in known.epochs for each in block[:10]]
            before = {each.rank: each.epoch for each in known.members} | known.removed
            listed = {
                rank: epoch
                for rank in self.chance.sample(ranks, self.chance.randint(0, len(ranks)))
                if (epoch := self.chance.choice(epochs)) >= before.get(rank, 0)
            }
            removed = {rank: epoch for rank, epoch in before.items() if rank not in listed}
            self.hosts.handle_snapshot(host, snapshot(self.number, listed, removed))
        else:
            self.hosts.handle_state(known.admission.host, self.chance.choice(list(HostState)))
        self.hosts.check_invariants()
        self.judge(name)

    def judge(self, name: str) -> None:
        """Ranks are one machine's; none goes back to an epoch; who is lost has nothing listed."""
        listed = self.engines.handle_host(name, self.hosts.members(name), self.hosts.removed(name))
        ranks = [member.rank for member in listed.engines]
        assert ranks == sorted(set(ranks))
        assert 0 not in ranks
        assert not set(ranks) & listed.removed.keys()
        assert {member.host for member in listed.engines} <= self.hosts.hosts.keys()
        now = listed.removed | {member.rank: member.epoch for member in listed.engines}
        for rank, epoch in self.known.items():
            assert now[rank] >= epoch
        self.known = now


@pytest.mark.parametrize("seed", range(20))
def test_whatever_hosts_do_epochs_of_a_rank_only_grow(seed: int) -> None:
    walk = Walk(Random(seed))
    for _ in range(60):
        walk.step()
