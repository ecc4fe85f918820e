"""Whose fault an exit was."""

import signal

import pytest

from triolet.nurseries.processes.process_exit import (
    EXIT_CHILD_KILLED,
    EXIT_CHILD_STARVED,
    EXIT_HANDED_OVER,
    ProcessExit,
)

KILLS = [
    # signal, code, out of memory: killed from outside?
    ((signal.SIGKILL, None, False), True),
    ((signal.SIGKILL, None, True), False),
    ((signal.SIGSEGV, None, False), False),
    ((signal.SIGTERM, None, False), False),
    ((None, 1, False), False),
    ((None, EXIT_CHILD_KILLED, False), True),
    ((None, EXIT_HANDED_OVER, False), True),
    ((None, None, False), False),
]


@pytest.mark.parametrize(("how", "killed"), KILLS)
def test_who_was_killed_from_outside(
    how: tuple[int | None, int | None, bool], killed: bool
) -> None:
    number, code, starved = how
    assert ProcessExit("p", 1, code, number, out_of_memory=starved).was_killed is killed


@pytest.mark.parametrize(
    ("code", "number", "starved"),
    [(None, signal.SIGKILL, True), (EXIT_CHILD_STARVED, None, False)],
)
def test_a_kill_for_want_of_memory_is_no_fault(
    code: int | None, number: int | None, starved: bool
) -> None:
    how = ProcessExit("p", 1, code, number, out_of_memory=starved)
    assert (how.was_starved, how.was_killed, how.is_own_fault) == (True, False, False)
    crashed = ProcessExit("p", 1, None, signal.SIGSEGV, out_of_memory=True)
    assert (crashed.was_starved, crashed.is_own_fault) == (False, True)
