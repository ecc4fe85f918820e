"""Snapshots are whole and numbered; an engine's states follow its epochs."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.control_messages import FrontendAddress
from triolet.runtime.control.calls import EngineState
from triolet.runtime.fleet.membership import (
    EngineDirectory,
    FrontendDirectory,
    deliver,
    reply_to,
)
from triolet.runtime.fleet.quarantine import Suspect
from triolet.runtime.messages import EngineMember, ForeignCall, ForeignOutcome, ForeignVerb

from ..children.acting_engine import READY


def test_an_engine_lives_dies_and_is_given_up() -> None:
    directory = EngineDirectory()
    assert directory.handle_starting(0, 1).engines[0].state is EngineState.STARTING
    assert directory.handle_ready(0, READY).engines[0].ready == READY
    gone = directory.handle_gone(0, "was killed by SIGKILL").engines[0]
    assert (gone.state, gone.ready, gone.cause) == (
        EngineState.RESTARTING,
        None,
        "was killed by SIGKILL",
    )
    assert gone.latest == READY, "what a frontend that is new then can expect"
    again = directory.handle_starting(0, 2, 1).engines[0]
    assert (again.epoch, again.restarts, again.cause) == (2, 1, "was killed by SIGKILL")
    assert (again.ready, again.latest) == (None, READY)
    failed = directory.handle_failed(0).engines[0]
    assert (failed.state, failed.latest) == (EngineState.FAILED, None)


def test_an_engine_that_is_failing_is_gone_for_frontends_once() -> None:
    directory = EngineDirectory()
    directory.handle_starting(0, 1)
    assert directory.handle_failing(0, "a worker died") is None, "it takes no work yet"
    directory.handle_ready(0, READY)
    failing = directory.handle_failing(0, "a worker died")
    assert failing is not None
    assert (failing.engines[0].state, failing.engines[0].ready) == (EngineState.RESTARTING, None)
    assert directory.handle_failing(0, "again") is None
    assert directory.snapshot().engines[0].cause == "a worker died"


def test_an_engine_that_is_removed_is_known_by_its_last_epoch_until_one_is_added() -> None:
    directory = EngineDirectory()
    for rank in range(2):
        directory.handle_starting(rank, 4 + rank)
    removed = directory.handle_removed(1)
    assert [member.rank for member in removed.engines] == [0]
    assert (removed.number, removed.removed) == (3, {1: 5})
    added = directory.handle_starting(1, 9)
    assert [member.epoch for member in added.engines] == [4, 9]
    assert (added.engines[1].restarts, added.removed) == (0, {})


def of_host(rank: int, epoch: int, host: str = "b", *, silent: bool = False) -> EngineMember:
    state = EngineState.READY
    return EngineMember(rank=rank, epoch=epoch, state=state, latest=READY, host=host, silent=silent)


def test_engines_of_another_machine_are_listed_as_a_block() -> None:
    directory = EngineDirectory()
    directory.handle_starting(0, 1)
    listed = directory.handle_host("b", [of_host(2, 9), of_host(1, 8)], {})
    assert (listed.number, [each.epoch for each in listed.engines]) == (2, [1, 8, 9])
    silent = directory.handle_host("b", [of_host(2, 9, silent=True)], {1: 8})
    assert [(each.rank, each.silent) for each in silent.engines] == [(0, False), (2, True)]
    assert silent.removed == {1: 8}
    lost = directory.handle_host("b", [], {})
    assert [each.rank for each in lost.engines] == [0]
    assert lost.removed == {1: 8, 2: 9}
    again = directory.handle_host("c", [of_host(2, 20, "c")], {})
    assert [each.host for each in again.engines] == ["", "c"]
    assert again.removed == {1: 8}
    assert directory.handle_host("b", [], {}).engines == again.engines


def test_ranks_of_another_machine_are_taken_before_it_lists_any() -> None:
    directory = EngineDirectory()
    directory.handle_starting(0, 1)
    directory.reserve("b", range(1, 3))
    directory.handle_host("b", [], {})
    assert directory.ranks() == {0, 1, 2}
    directory.reserve("b", ())
    assert directory.ranks() == {0}


def test_a_rank_is_on_one_machine() -> None:
    directory = EngineDirectory()
    directory.handle_starting(0, 1)
    with pytest.raises(AssertionError, match="a rank is on one machine"):
        directory.handle_host("b", [of_host(0, 9)], {})


def test_epochs_only_grow() -> None:
    directory = EngineDirectory()
    directory.handle_starting(0, 2)
    with pytest.raises(AssertionError):
        directory.handle_starting(0, 2)


def test_snapshots_are_whole_and_numbered() -> None:
    directory = EngineDirectory()
    numbers = [directory.handle_starting(1, 1).number, directory.handle_starting(0, 2).number]
    assert numbers == [1, 2]
    assert [member.rank for member in directory.snapshot().engines] == [0, 1]


def test_suspects_that_have_passed_are_not_listed() -> None:
    directory = EngineDirectory()
    number = directory.handle_starting(0, 1).number
    suspects = {b"x": Suspect(7), b"y": Suspect(0, alone=(1,))}
    membership = directory.handle_quarantine(suspects, {b"z": 9.0})
    assert membership.number == number + 1
    assert (membership.suspects, membership.refused) == ({b"x": 7}, {b"z": 9.0})


def test_a_frontend_replaces_its_predecessor_under_a_later_term() -> None:
    directory = FrontendDirectory()
    for term in (1, 3):
        there = directory.handle_ready(FrontendAddress(0, term, "c", "d"))
        assert ([address.term for address in there.frontends], there.awaited) == ([term], [])
    assert directory.died_ns(0) == 0
    assert directory.handle_gone(0, 7).frontends == []
    assert directory.handle_gone(0, 8).number == 4
    assert directory.died_ns(0) == 8


def test_a_home_awaits_its_next_owner_until_that_is_up_or_none_is_to_come() -> None:
    directory = FrontendDirectory()
    for rank in (0, 1):
        directory.handle_ready(FrontendAddress(rank, 1 + rank, "a", "b"))
        directory.handle_gone(rank, 1)
    assert directory.snapshot().awaited == [0, 1]
    assert directory.handle_ready(FrontendAddress(0, 3, "c", "d")).awaited == [1]
    assert directory.handle_failed(1).awaited == []
    assert directory.handle_gone(2, 2).awaited == [], "it was never up"


CALL = ForeignCall(
    caller=0,
    caller_epoch=5,
    call_id=9,
    frontend=1,
    verb=ForeignVerb.CANCEL,
    response_id="resp_x",
    principal="p",
)
FOUND = reply_to(CALL, ForeignOutcome.FOUND, "{}")


@pytest.mark.parametrize(
    ("message", "epochs", "delivery"),
    [
        (CALL, {0: 5, 1: 6}, 1),
        (CALL, {0: 5, 1: 99}, 1),  # a successor answers for itself
        (CALL, {0: 5}, None),  # which the caller hears of otherwise
        (CALL, {}, None),
        (FOUND, {0: 5, 1: 6}, 0),
        (FOUND, {0: 5}, 0),
        (FOUND, {0: 7, 1: 6}, None),
        (FOUND, {1: 6}, None),
    ],
)
def test_where_messages_go(message: object, epochs: dict[int, int], delivery: int | None) -> None:
    assert isinstance(message, type(CALL) | type(FOUND))
    assert deliver(message, epochs) == delivery


@given(
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 4),
    st.dictionaries(st.integers(0, 3), st.integers(1, 4)),
)
def test_nothing_goes_to_who_is_not_there_or_has_not_asked(
    caller: int, frontend: int, epoch: int, epochs: dict[int, int]
) -> None:
    call = attrs.evolve(CALL, caller=caller, caller_epoch=epoch, frontend=frontend)
    assert deliver(call, epochs) == (frontend if frontend in epochs else None)
    reply = reply_to(call, ForeignOutcome.FOUND)
    has_asked = epochs.get(caller) == epoch
    assert deliver(reply, epochs) == (caller if has_asked else None)
