"""Plan, options and judgement of a campaign; the campaign itself runs in `tests/chaos`."""

import math
from collections import Counter
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.command_line import app
from triolet.engine.errors import InvalidParameter
from triolet.engine.worker.null.executor import null_token
from triolet.fuzz.__main__ import app as fuzz_app
from triolet.fuzz.chaos.campaign import QUIET_S, log_violations, settled
from triolet.fuzz.chaos.checkers import Look, QuietLook, judge_free
from triolet.fuzz.chaos.command import exit_code, plan_of
from triolet.fuzz.chaos.fault_plan import (
    DECK,
    IN_BOOT,
    KILLS,
    POISON_SEED,
    SLOW,
    Family,
    FaultKind,
    Transport,
    digest,
    kinds_of,
    make_plan,
)
from triolet.fuzz.chaos.history import Violation
from triolet.fuzz.chaos.load import PROBES, check_null_tokens
from triolet.fuzz.chaos.options import ChaosOptions
from triolet.fuzz.chaos.poisoned_worker import tokens_till
from triolet.fuzz.chaos.report.report import Report
from triolet.nurseries.processes.hang_watch import DEADLINE_MIN_S
from triolet.runtime.control.client import ControlCallFailed

UNPLACED = (Family.CLIENT, Family.NETWORK, Family.POISON)
SHAPE: dict[str, Any] = {"engines": 2, "frontends": 3, "scripts": 3}


def test_a_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert make_plan(5, 60, **SHAPE) == make_plan(5, 60, **SHAPE)
    assert digest(make_plan(5, 60, **SHAPE)) != digest(make_plan(6, 60, **SHAPE))


def test_every_kind_comes_once_before_any_comes_again() -> None:
    plan = make_plan(1, 3 * len(DECK), **SHAPE)
    for start in range(0, len(plan), len(DECK)):
        kinds = Counter(fault.kind for fault in plan[start : start + len(DECK)])
        assert kinds == Counter(DECK)
    assert FaultKind.KILL_ROOT not in DECK


WANTS = (Family.MEMORY, Family.DESCRIPTORS)
LASTS = kinds_of(Family.STOP, Family.NETWORK, Family.LINK, *WANTS) | SLOW
LASTS -= {FaultKind.CUT, FaultKind.LINK_CUT}


@pytest.mark.parametrize("seed", range(5))
def test_every_fault_can_be_made(seed: int) -> None:
    for fault in make_plan(seed, 200, **SHAPE):
        if fault.place.startswith("engine"):
            assert fault.rank < 2
        if fault.place.startswith(("frontend", "forms")):
            assert fault.rank < 3
        if fault.kind in LASTS:
            assert fault.seconds > 0
        if fault.kind.family is Family.STOP and fault.place != "root":
            assert fault.seconds < DEADLINE_MIN_S, "it would be ended, and no stop be proven"
        if fault.kind in (FaultKind.CANCEL_SOCKET, FaultKind.LEAVE):
            assert fault.transport is Transport.SOCKET
        if fault.kind in (FaultKind.CANCEL_HTTP, FaultKind.CANCEL_SOCKET):
            assert fault.token >= 1, "an id to cancel by is known from the first event on"
        inside = {FaultKind.KILL_WORKER, FaultKind.STOP_WORKER, FaultKind.HANG_WORKER}
        assert bool(fault.deaths) == (fault.kind in KILLS - inside)
        assert fault.place not in fault.also
        assert bool(fault.phase) == (fault.kind in IN_BOOT)
        assert bool(fault.place) == (fault.kind.family not in UNPLACED)
        if fault.kind is FaultKind.POISON:
            assert tokens_till(POISON_SEED + fault.token) == fault.token


OPTIONS = ChaosOptions(
    seed=7,
    faults=10,
    frontends=1,
    executor="native",
    kv_blocks=64,
    only=(FaultKind.KILL_ALL, FaultKind.LEAVE),
    unlike=True,
)


def test_the_plan_is_that_of_its_options_and_the_verdict_is_the_exit_code() -> None:
    plan = plan_of(ChaosOptions(seed=3, faults=40, only=(FaultKind.POISON,)))
    assert {fault.kind for fault in plan} == {FaultKind.POISON}
    report = Report(3, digest(plan), [])
    assert exit_code(report) == 0
    report.violations.append(Violation("I1", "another token"))
    assert exit_code(report) == 1


def test_the_replay_is_a_command_that_there_is_in_two_places() -> None:
    words = OPTIONS.words_of_replay()
    assert words[:2] == ["triolet", "chaos"]
    for each in (app, fuzz_app):
        command, bound, _ = each.parse_args(words[1:], print_error=False, exit_on_error=False)
        assert command.__name__ == "chaos"
        assert bound.arguments["options"] == OPTIONS


@pytest.mark.parametrize(
    "wrong",
    [
        {"faults": 0},
        {"minutes": 0.0},
        {"minutes": math.nan},
        {"engines": 0},
        {"frontends": -1},
        {"workers": 0},
        {"unlike": True},  # the null executor knows no instruction sets
        {"unlike": True, "executor": "native", "engines": 1},
        {"kv_blocks": -1},
        {"only": (FaultKind.KILL_ROOT,)},
        {"step": -1.0},
        {"step": math.inf},
        {"patience": 0.5},
        {"patience": math.nan},
    ],
    ids=str,
)
def test_what_makes_no_campaign_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter) as caught:
        ChaosOptions(**wrong)
    assert caught.value.parameter in wrong


VOCABULARY = 100


def test_tokens_of_the_null_executor_are_recomputed() -> None:
    script = PROBES[1]
    tokens = [17]
    for position in range(1, 9):
        tokens.append(null_token(script.seed, position, tokens[-1], vocab_size=VOCABULARY))
    assert check_null_tokens(script, tokens, VOCABULARY) == []
    (violation,) = check_null_tokens(script, [*tokens[:4], *tokens[5:]], VOCABULARY)
    assert violation.invariant == "I2"
    assert "token 4" in violation.evidence


def test_what_must_not_be_in_the_log() -> None:
    assert log_violations("engine 0: was killed by SIGKILL\nengine 0: ready") == []
    found = log_violations("engine 0: given up: it died too often\nTraceback (most recent")
    assert [violation.invariant for violation in found] == ["I10", "I10"]
    want = "10:00:00 frontend 0: ERROR failed\nTraceback (most recent call last):\nMemoryError\n"
    assert log_violations(want) == []
    assert len(log_violations(want.replace("Memory", "Key") + want)) == 1
    cut = "Traceback (most recent call last):\n  File\n10:00:01 engine 0: ready\n    import a\n"
    for error, count in (
        ("MemoryError\n", 0),
        ("ValueError: unsupported hash type blake2s\n", 0),
        ("KeyError\n", 1),
        ("10:00:02 ready\n", 1),
    ):
        assert len(log_violations(cut + error)) == count


ENGINE = Look(pid=1, epoch=1, fds=9, memfds=1, rss_bytes=1, facts={"kv blocks": "7 of 8 free"})
HELD = QuietLook(
    places={"engine 0": ENGINE},
    pids=frozenset({1}),
    zombies=(),
    abstract_sockets=0,
    shared_memory=(),
    connections=0,
)


@attrs.define
class Looks:
    """Gives these one after the other, and the last one for ever; None is no answer."""

    looks: list[QuietLook | None]

    async def __call__(self) -> QuietLook:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if look is None:
            raise ControlCallFailed("no answer")
        return look


async def test_what_never_gets_free_is_a_violation_and_no_wait_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with trio.fail_after(QUIET_S + 1):
        (found,) = await settled(Looks([HELD]), judge_free, QUIET_S)
        assert (found.invariant, "7 of 8" in found.evidence) == ("I4", True)
        (found,) = await settled(Looks([None]), judge_free, 0.5)
        assert found.invariant == "I8"


async def test_what_gets_free_in_time_is_none(autojump_clock: trio.testing.MockClock) -> None:
    free = attrs.evolve(ENGINE, facts={"kv blocks": "8 of 8 free", "running": 0})
    looks = Looks([HELD, None, HELD, attrs.evolve(HELD, places={"engine 0": free})])
    assert await settled(looks, judge_free, QUIET_S) == []
