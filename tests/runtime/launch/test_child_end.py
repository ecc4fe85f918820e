"""Ends of children are judged: whose fault, and what the policy of restarts makes of them."""

import signal

import pytest

from triolet.engine.errors import BootRefused
from triolet.nurseries.processes.boot import EXIT_SHORTAGE
from triolet.nurseries.processes.hang_watch import ProcessHung
from triolet.nurseries.processes.process_exit import (
    EXIT_CHILD_KILLED,
    EXIT_CHILD_STARVED,
    EXIT_HANDED_OVER,
    ProcessDied,
    ProcessExit,
    ProcessStuck,
)
from triolet.nurseries.tasks.supervision_policy import Death
from triolet.runtime.launch.child_end import EndKind, end_of
from triolet.transports.control.handshake import StrayPeer


@pytest.mark.parametrize(
    ("code", "number", "kind", "death"),
    [
        (1, None, EndKind.FAULT, Death.FAULT),
        (None, signal.SIGSEGV, EndKind.FAULT, Death.FAULT),
        (None, signal.SIGKILL, EndKind.KILLED, Death.KILLED),
        (EXIT_CHILD_KILLED, None, EndKind.KILLED, Death.KILLED),
        (EXIT_HANDED_OVER, None, EndKind.HANDED_OVER, Death.KILLED),
        (EXIT_CHILD_STARVED, None, EndKind.SHORTAGE, Death.SHORTAGE),
        (EXIT_SHORTAGE, None, EndKind.EXCESS, Death.SHORTAGE),
        # Unasked, it counts as a fault; it did nothing wrong that is known.
        (0, None, EndKind.UNASKED, Death.FAULT),
        (None, signal.SIGTERM, EndKind.UNASKED, Death.FAULT),
        (None, None, EndKind.UNASKED, Death.FAULT),
    ],
)
def test_what_an_exit_says_of_the_next_one(
    code: int | None, number: int | None, kind: EndKind, death: Death
) -> None:
    how = ProcessExit("engine 0", 1, code, number)
    end = end_of(ProcessDied(how))
    assert (end.kind, end.cause, end.death) == (kind, how.describe(), death)
    assert end.is_own_fault == (kind in (EndKind.FAULT, EndKind.EXCESS))
    assert end.reason == f"it died too often; the last time it {how.describe()}"


def test_a_kill_for_want_of_memory_is_no_fault() -> None:
    how = ProcessExit("engine 0", 1, None, signal.SIGKILL, out_of_memory=True)
    assert end_of(ProcessDied(how)).kind is EndKind.SHORTAGE


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ProcessHung("engine 0", "hung"), EndKind.FAULT),
        (ProcessHung("engine 0", "hung", is_own_fault=False), EndKind.KILLED),
        (BootRefused("engine 0", "no model"), EndKind.REFUSED),
        (StrayPeer("engine 0", "another"), EndKind.FAULT),
        (ProcessStuck("engine 0", 1, 10.0), EndKind.STUCK),
        (OSError("no process"), EndKind.SHORTAGE),
        (AssertionError("a bug"), EndKind.UNASKED),
    ],
)
def test_what_else_ends_a_run(error: Exception, kind: EndKind) -> None:
    end = end_of(error)
    assert (end.kind, end.error, end.reason) == (kind, error, str(error))
