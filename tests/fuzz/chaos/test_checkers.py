"""Checkers of the chaos campaign: good runs pass, and every breach that is planted is found."""

from typing import Any

import attrs
import pytest

from triolet.fuzz.chaos.checkers import (
    ABORT_STEPS_MAX,
    CRASHED,
    RSS_GROWTH_BYTES_MAX,
    Disturbance,
    Expected,
    Look,
    QuietLook,
    judge_abort,
    judge_epochs,
    judge_form_fault,
    judge_full_disk,
    judge_health,
    judge_lives,
    judge_poison,
    judge_quiet,
    judge_root_death,
    judge_starved,
    judge_stream,
    judge_torn,
)
from triolet.fuzz.chaos.fault_plan import Fault, FaultKind, Transport
from triolet.fuzz.chaos.history import Ending, StreamHistory

RESPONSE_ID = "resp_01" + 32 * "a"
TOKENS = [11, 12, 13, 14]
TEXT = "t0 t1 t2 t3 "


def delta(first: int, count: int = 1, **fields: Any) -> dict[str, Any]:
    """The delta of the tokens from index `first` on."""
    return {
        "type": "response.output_text.delta",
        "sequence_number": 8 * (first + count),
        "token_index": first,
        "token_ids": TOKENS[first : first + count],
        "delta": "".join(f"t{index} " for index in range(first, first + count)),
        **fields,
    }


def created() -> dict[str, Any]:
    """The first event."""
    return {
        "type": "response.created",
        "sequence_number": 0,
        "response": {"id": RESPONSE_ID, "status": "in_progress"},
    }


def end(kind: str, status: str, tokens: int = 4, **fields: Any) -> dict[str, Any]:
    """A terminal event."""
    response = {"status": status, "usage": {"output_tokens": tokens}, **fields}
    return {"type": kind, "sequence_number": 100, "response": response}


def finished() -> dict[str, Any]:
    """The end of a stream that has all its tokens."""
    return end("response.incomplete", "incomplete")


def failed(message: str, code: str = "engine_died") -> dict[str, Any]:
    """The end by an error."""
    return end("response.failed", "failed", error={"code": code, "message": message})


def history_of(*events: dict[str, Any]) -> StreamHistory:
    """A history that began at 10 s and saw these events, one each tenth of a second."""
    history = StreamHistory("a stream", 0, Transport.SSE, 10.0)
    for number, event in enumerate(events, 1):
        history.see(event, 10.0 + number / 10)
    return history


def invariants(history: StreamHistory) -> list[str]:
    """Which ones the wire alone has broken."""
    return [violation.invariant for violation in history.violations]


DELTAS = [delta(0), delta(1, 2), delta(3)]


def test_a_whole_stream() -> None:
    history = history_of(created(), *DELTAS, finished())
    assert history.violations == []
    assert history.ending is Ending.FINISHED
    assert history.token_ids == [11, 12, 13, 14]
    assert history.text == "t0 t1 t2 t3 "
    assert history.frontend == 1
    assert history.ended_s == 10.5


@pytest.mark.parametrize(
    ("events", "invariant"),
    [
        ([delta(0), delta(0)], "I1"),  # resumed one too early
        ([delta(0), delta(2)], "I1"),  # resumed one too late
        ([delta(1)], "I1"),  # the first is missing
        ([delta(0), delta(1, sequence_number=8)], "I1"),  # a number twice
        ([delta(0, sequence_number=16)], "I1"),  # a number that its tokens do not give
        ([delta(0), end("response.incomplete", "incomplete", 2)], "I4"),
        ([delta(0), delta(1), end("response.incomplete", "incomplete", 1)], "I4"),
        ([*DELTAS, finished(), finished()], "I3"),
        ([*DELTAS, finished(), delta(3)], "I3"),
        ([delta(0), end("response.incomplete", "cancelled", 1), delta(1)], "I12"),
        ([delta(0), {"type": "response.output_text.done", "text": "other"}], "I1"),
    ],
    ids=str,
)
def test_what_the_wire_alone_shows_to_be_wrong(
    events: list[dict[str, Any]], invariant: str
) -> None:
    assert invariant in invariants(history_of(created(), *events))


def test_a_cancelled_stream_may_have_computed_more_than_it_showed() -> None:
    history = history_of(created(), delta(0), end("response.incomplete", "cancelled", 3))
    assert history.ending is Ending.CANCELLED
    assert history.violations == []


def test_an_error_before_the_first_event_is_a_refusal_and_later_a_failure() -> None:
    error = {"type": "error", "error": {"code": "no_engine", "message": "none"}}
    assert history_of(error).ending is Ending.REFUSED
    assert history_of(created(), error).ending is Ending.FAILED
    history = history_of(created(), failed("engine 0 died"))
    assert (history.ending, history.code) == (Ending.FAILED, "engine_died")


def test_the_first_end_is_the_end() -> None:
    history = history_of(created())
    history.lose("reset", 11.0)
    history.leave(12.0)
    history.give_up(13.0)
    assert (history.ending, history.message, history.ended_s) == (Ending.LOST, "reset", 11.0)


def test_who_comes_back_loses_no_stream_that_has_begun() -> None:
    history = history_of(created(), *DELTAS[:2])
    history.comes_back = True
    history.lose("reset", 11.0)
    assert history.goes_on
    history.come_back(12.0)
    for event in (*DELTAS[2:], finished()):
        history.see(event, 12.1)
    assert (history.ending, history.returns, history.violations) == (Ending.FINISHED, 1, [])
    history.lose("reset", 13.0)
    assert history.ending is Ending.FINISHED
    early = history_of()
    early.comes_back = True
    early.lose("reset", 11.0)
    assert early.ending is Ending.LOST


def test_the_longest_pause_is_known() -> None:
    history = history_of(created(), delta(0))
    history.see(delta(1), 17.0)
    history.see(delta(2), 17.1)
    assert history.gap_s == pytest.approx(6.8)
    assert history.gap_ended_s == 17.0


EXPECTED = [Expected(TOKENS, TEXT)]
WHOLE = [created(), delta(0, 4), finished()]
DIED = "engine 1 (epoch 7) died: was killed by SIGKILL. The request may be sent again"
ENGINE_DEATH = Disturbance(place="engine 1/worker 0", is_death=True, since_s=10.1, until_s=12.0)
FRONTEND_DEATH = attrs.evolve(ENGINE_DEATH, place="frontend 1")
STOP = attrs.evolve(ENGINE_DEATH, is_death=False)


def lost(*events: dict[str, Any]) -> StreamHistory:
    history = history_of(*events)
    history.lose("reset", 10.5)
    return history


def test_a_stream_may_begin_on_a_connection_that_is_dead_by_then() -> None:
    """Its frontend died, and has a successor, while nothing was read from the connection."""
    death = attrs.evolve(FRONTEND_DEATH, since_s=8.0, until_s=8.5)
    history = lost()
    history.connected_s = 7.0
    assert judge_stream(history, EXPECTED, [death], engines=2) == []
    history.connected_s = 9.0
    (violation,) = judge_stream(history, EXPECTED, [death], engines=2)
    assert violation.invariant == "I7"


def test_logprobs_are_compared_as_far_as_they_go() -> None:
    expected = [Expected(TOKENS, TEXT, (-0.5, -1.5, -2.5, -3.5))]

    def told(*values: float) -> dict[str, Any]:
        return delta(0, len(values), logprobs=[{"logprob": value} for value in values])

    cut = history_of(created(), told(-0.5, -1.5))
    cut.leave(11.0)
    assert judge_stream(cut, expected, [], engines=2) == []
    good = history_of(created(), told(-0.5, -1.5, -2.5, -3.5), finished())
    assert judge_stream(good, expected, [], engines=2) == []
    for wrong in ([told(-0.5, -1.5, -2.5, -3.4)], [told(-0.5), delta(1, 3)]):
        (found,) = judge_stream(history_of(created(), *wrong, finished()), expected, [], engines=2)
        assert (found.invariant, "logprobs" in found.evidence) == ("I1", True)


def test_where_engines_differ_a_stream_is_wholly_of_one_of_them() -> None:
    both = [*EXPECTED, Expected([21, 22, 23, 24], "u0 u1 u2 u3 ")]
    others = [delta(0, 4, token_ids=[21, 22, 23, 24], delta="u0 u1 u2 u3 "), finished()]
    assert judge_stream(history_of(*WHOLE), both, [], engines=2) == []
    assert judge_stream(history_of(created(), *others), both, [], engines=2) == []
    mixed = [delta(0), delta(1, 3, token_ids=[22, 23, 24], delta="u1 u2 u3 "), finished()]
    found = judge_stream(history_of(created(), *mixed), both, [ENGINE_DEATH], engines=2)
    assert {violation.invariant for violation in found} == {"I1"}


def hanging() -> StreamHistory:
    history = history_of(created(), delta(0))
    history.give_up(50.0)
    return history


def paused(until_s: float) -> StreamHistory:
    history = history_of(created(), delta(0))
    history.see(delta(1, 3), until_s)
    history.see(finished(), until_s)
    return history


@pytest.mark.parametrize(
    ("history", "disturbances"),
    [
        (history_of(*WHOLE), []),
        (history_of(*WHOLE), [ENGINE_DEATH]),
        (lost(created(), delta(0)), [FRONTEND_DEATH]),
        (lost(), [FRONTEND_DEATH]),  # before its first event nobody knows which frontend it was
        (paused(18.0), [STOP]),
    ],
    ids=str,
)
def test_a_stream_as_it_should_be(history: StreamHistory, disturbances: list[Disturbance]) -> None:
    assert judge_stream(history, EXPECTED, disturbances, engines=2) == []


@pytest.mark.parametrize(
    ("history", "disturbances", "invariant"),
    [
        # Another token, too many of them, too few, another text.
        (history_of(created(), delta(0, token_ids=[99])), [], "I1"),
        (history_of(created(), delta(0, 4), delta(4, token_ids=[15])), [], "I1"),
        (history_of(created(), delta(0), finished()), [], "I1"),
        (history_of(created(), delta(0, delta="x"), *WHOLE[1:]), [ENGINE_DEATH], "I1"),
        # What the wire shows is passed on.
        (history_of(created(), delta(1)), [], "I1"),
        # No end, by itself or within its time.
        (history_of(created(), delta(0)), [], "I3"),
        (hanging(), [ENGINE_DEATH], "I3"),
        # Ends that nothing explains.
        (lost(created(), delta(0)), [ENGINE_DEATH], "I7"),
        (lost(created(), delta(0)), [attrs.evolve(FRONTEND_DEATH, place="frontend 0")], "I7"),
        (paused(18.0), [], "I7"),
        # No death of an engine ends a stream, whatever the error.
        (history_of(created(), failed("no", "internal_error")), [ENGINE_DEATH], "I13"),
        (history_of(created(), delta(0), failed(DIED)), [ENGINE_DEATH], "I13"),
        (history_of(created(), failed(DIED)), [], "I13"),
    ],
    ids=str,
)
def test_a_stream_that_breaks_a_promise(
    history: StreamHistory, disturbances: list[Disturbance], invariant: str
) -> None:
    found = judge_stream(history, EXPECTED, disturbances, engines=2)
    assert invariant in [violation.invariant for violation in found]
    assert all("a stream" in violation.evidence for violation in found)


WANT = attrs.evolve(FRONTEND_DEATH, is_death=False, is_want=True)
BROKEN = history_of(created(), failed("no memory", "internal_error"))


@pytest.mark.parametrize(
    ("history", "disturbance", "is_excused"),
    [
        (BROKEN, WANT, True),
        (lost(created(), delta(0)), WANT, True),
        (lost(), WANT, True),  # nobody knows whose it was
        (BROKEN, attrs.evolve(WANT, place="frontend 0"), False),
        (BROKEN, attrs.evolve(WANT, place="engine 1"), False),
        (BROKEN, attrs.evolve(WANT, since_s=11.0), False),
        (hanging(), WANT, False),
    ],
    ids=str,
)
def test_a_frontend_without_memory_may_fail_its_own_streams(
    history: StreamHistory, disturbance: Disturbance, is_excused: bool
) -> None:
    assert (judge_stream(history, EXPECTED, [disturbance], engines=2) == []) == is_excused


@pytest.mark.parametrize(("forgets_s", "is_excused"), [(0.5, False), (1.5, True)])
def test_what_had_just_begun_may_be_lost_with_the_end_of_a_journal(
    forgets_s: float, is_excused: bool
) -> None:
    since_s = BROKEN.ended_s
    torn = attrs.evolve(FRONTEND_DEATH, since_s=since_s, until_s=since_s + 1.0, forgets_s=forgets_s)
    history = attrs.evolve(BROKEN, started_s=since_s - 1.0)
    history.see(created(), since_s)
    history.see(failed("no such response", "not_found"), since_s)
    assert (judge_stream(history, EXPECTED, [torn], engines=2) == []) == is_excused


FULL = "streams end with their frontend, as its journal failed: File too large"
LOGGED = "12:00:00 ERROR the journal is given up: a successor finds none: File too large\n"


@pytest.mark.parametrize(
    ("said", "log", "violations"),
    [
        ([FULL], f"12:00:00 a line\n{LOGGED}", 0),
        ([], LOGGED, 1),
        (["another engine"], LOGGED, 1),
        ([FULL], "", 1),
        ([FULL], LOGGED + LOGGED, 1),
        ([], "", 2),
    ],
)
def test_a_full_disk_is_said_once(said: list[str], log: str, violations: int) -> None:
    found = judge_full_disk(said, 0, log)
    assert [violation.invariant for violation in found] == violations * ["I13"]


@pytest.mark.parametrize(
    ("after", "log", "invariants"),
    [
        ({"engine 0": 20, "frontend 0": 21}, "the journal ends before its end: torn", []),
        ({"engine 0": 3, "frontend 0": 21}, "the journal ends before its end: torn", ["I11"]),
        ({"engine 0": 20, "frontend 0": 21}, "", ["I13"]),
    ],
)
def test_a_server_with_torn_journals_begins_anew_and_says_so(
    after: dict[str, int], log: str, invariants: list[str]
) -> None:
    found = judge_torn({"engine 0": 3, "frontend 0": 4}, after, 1, log)
    assert [violation.invariant for violation in found] == invariants


def test_with_patience_a_pause_may_be_longer() -> None:
    assert judge_stream(paused(18.0), EXPECTED, [], engines=2, patience=5.0) == []


def test_to_have_no_engine_takes_the_death_of_all() -> None:
    refusal = {"type": "error", "error": {"code": "no_engine", "message": "none is ready"}}
    both = [ENGINE_DEATH, attrs.evolve(ENGINE_DEATH, place="engine 0")]
    assert judge_stream(history_of(refusal), EXPECTED, both, engines=2) == []
    for disturbances in ([], [ENGINE_DEATH, FRONTEND_DEATH], both[1:]):
        (violation,) = judge_stream(history_of(refusal), EXPECTED, disturbances, engines=2)
        assert violation.invariant == "I7"


IDLE: dict[str, str | int | float] = {"running": 0, "waiting": 0, "kv blocks": "64 of 64 free"}
ROOT = Look(pid=1, epoch=0, fds=10, memfds=0, rss_bytes=2**25, facts={})
ENGINE = Look(pid=2, epoch=1, fds=20, memfds=2, rss_bytes=2**25, facts=IDLE)
FRONTEND = Look(pid=3, epoch=2, fds=20, memfds=0, rss_bytes=2**25, facts={"requests": 0})
QUIET = QuietLook(
    places={"root": ROOT, "engine 0": ENGINE, "frontend 0": FRONTEND},
    pids=frozenset({1, 2, 3}),
    zombies=(),
    abstract_sockets=4,
    shared_memory=(),
    connections=0,
)


def with_look(place: str, look: Look, **changes: Any) -> QuietLook:
    places = {**QUIET.places, place: attrs.evolve(look, **changes)}
    return attrs.evolve(QUIET, places=places)


def test_a_quiet_run_that_is_as_it_was() -> None:
    assert judge_quiet(QUIET, QUIET) == []
    restarted = with_look("engine 0", ENGINE, epoch=9, fds=19)
    assert judge_quiet(QUIET, restarted) == []


@pytest.mark.parametrize(
    ("now", "invariant"),
    [
        (with_look("engine 0", ENGINE, facts={**IDLE, "running": 1}), "I4"),
        (with_look("engine 0", ENGINE, facts={**IDLE, "waiting": 1}), "I4"),
        (with_look("engine 0", ENGINE, facts={**IDLE, "kv blocks": "63 of 64 free"}), "I4"),
        (with_look("frontend 0", FRONTEND, facts={"requests": 1}), "I4"),
        (with_look("root", ROOT, facts={"open streams": 1}), "I4"),
        (with_look("engine 1", ENGINE), "I5"),
        (attrs.evolve(QUIET, pids=frozenset({1, 2, 3, 4})), "I5"),
        (attrs.evolve(QUIET, zombies=(9,)), "I5"),
        (with_look("root", ROOT, fds=11), "I6"),
        (with_look("engine 0", ENGINE, memfds=3), "I6"),
        (attrs.evolve(QUIET, abstract_sockets=5), "I6"),
        (attrs.evolve(QUIET, shared_memory=("/dev/shm/x",)), "I6"),
        (attrs.evolve(QUIET, connections=1), "I6"),
        (with_look("root", ROOT, rss_bytes=ROOT.rss_bytes + RSS_GROWTH_BYTES_MAX + 1), "I9"),
    ],
    ids=str,
)
def test_what_is_left_when_all_is_quiet(now: QuietLook, invariant: str) -> None:
    assert invariant in [violation.invariant for violation in judge_quiet(QUIET, now)]


BEFORE = {"frontend 0": 1, "engine 0": 5, "engine 1": 3}


ENGINE_1, BOTH = {"engine 1": 1}, {"engine 0": 1, "engine 1": 1}


@pytest.mark.parametrize(
    ("now", "deaths", "invariants"),
    [
        ({**BEFORE, "engine 1": 6}, ENGINE_1, []),
        ({**BEFORE, "engine 1": 7}, {"engine 1": 2}, []),
        ({**BEFORE, "engine 0": 7, "engine 1": 6}, BOTH, []),
        (BEFORE, {}, []),
        ({**BEFORE, "engine 1": 6}, {}, ["I7", "I10"]),  # a stop must not end a life
        ({**BEFORE, "engine 1": 7}, ENGINE_1, ["I10"]),  # it was started twice
        (BEFORE, ENGINE_1, ["I11", "I10"]),  # the dead epoch is still listed
        ({**BEFORE, "engine 1": 7}, BOTH, ["I11"]),  # one of two is
        ({**BEFORE, "engine 1": 6, "frontend 0": 7}, ENGINE_1, ["I7", "I10"]),
    ],
)
def test_epochs(now: dict[str, int], deaths: dict[str, int], invariants: list[str]) -> None:
    found = judge_epochs(BEFORE, now, deaths)
    assert [violation.invariant for violation in found] == invariants


QUARANTINE = {"code": "request_quarantined", "message": "engines died of it"}
REFUSAL = {"type": "error", "error": QUARANTINE}
ONE_DEATH, TWO_DEATHS = {**BEFORE, "engine 1": 6}, {**BEFORE, "engine 0": 7, "engine 1": 6}


@pytest.mark.parametrize(
    ("first", "again", "after", "at_last", "invariants"),
    [
        ([REFUSAL], [REFUSAL], TWO_DEATHS, TWO_DEATHS, []),
        ([REFUSAL], [REFUSAL], {**BEFORE, "engine 1": 7}, {**BEFORE, "engine 1": 7}, []),
        ([created(), delta(0), REFUSAL], [REFUSAL], ONE_DEATH, ONE_DEATH, []),
        # It had no refusal, another one, or none when it came again.
        (WHOLE, [REFUSAL], TWO_DEATHS, TWO_DEATHS, ["I13"]),
        ([created(), failed("died")], [REFUSAL], TWO_DEATHS, TWO_DEATHS, ["I13"]),
        ([REFUSAL], WHOLE, TWO_DEATHS, TWO_DEATHS, ["I13"]),
        # It cost three lives, one of a frontend, or one more when it was known.
        ([REFUSAL], [REFUSAL], {**BEFORE, "engine 1": 8}, {**BEFORE, "engine 1": 8}, ["I10"]),
        ([REFUSAL], [REFUSAL], {**BEFORE, "frontend 0": 6}, {**BEFORE, "frontend 0": 6}, ["I10"]),
        ([REFUSAL], [REFUSAL], ONE_DEATH, TWO_DEATHS, ["I10"]),
        # What the wire shows is passed on.
        ([created(), delta(1), REFUSAL], [REFUSAL], ONE_DEATH, ONE_DEATH, ["I1", "I1"]),
    ],
)
def test_a_poison_costs_two_lives_and_is_refused(
    first: list[dict[str, Any]],
    again: list[dict[str, Any]],
    after: dict[str, int],
    at_last: dict[str, int],
    invariants: list[str],
) -> None:
    epochs = BEFORE, after, at_last
    found = judge_poison(history_of(*first), history_of(*again), epochs)
    assert [violation.invariant for violation in found] == invariants


STARVED = Fault(
    number=0,
    kind=FaultKind.STARVE_WORKER,
    rank=1,
    transport=Transport.SSE,
    script=0,
    token=0,
    seconds=1.0,
)


@pytest.mark.parametrize(
    ("now", "invariants", "in_boot"),
    [
        (BEFORE, [], ["I11", "I10"]),  # where it boots, one was killed before
        (ONE_DEATH, [], []),
        ({**BEFORE, "engine 1": 7}, ["I7", "I10"], []),  # twice
        ({**BEFORE, "engine 1": 8}, ["I7", "I10"], ["I10"]),
        ({**BEFORE, "engine 0": 6}, ["I7", "I10"], ["I7", "I11"]),  # another
    ],
)
def test_what_is_starved_lives_or_dies_once(
    now: dict[str, int], invariants: list[str], in_boot: list[str]
) -> None:
    found = judge_starved(STARVED, BEFORE, now)
    assert [violation.invariant for violation in found] == invariants
    found = judge_starved(attrs.evolve(STARVED, kind=FaultKind.STARVE_BOOT), BEFORE, now)
    assert [violation.invariant for violation in found] == in_boot


@pytest.mark.parametrize(
    ("asked", "bomb", "pids", "invariants"),
    [
        (WHOLE, CRASHED, {"forms 0": 4, "frontend 0": 2}, []),
        # Not the client's own connection, a bomb that is served, or refused by a guess.
        ([created(), delta(0)], CRASHED, {"forms 0": 4, "frontend 0": 2}, ["I13"]),
        ([REFUSAL], CRASHED, {"forms 0": 4, "frontend 0": 2}, ["I13"]),
        (WHOLE, "no process is there to check it", {"forms 0": 4, "frontend 0": 2}, ["I13"]),
        # Nobody died, or somebody else besides, or came back as nobody.
        (WHOLE, CRASHED, {"forms 0": 3, "frontend 0": 2}, ["I7"]),
        (WHOLE, CRASHED, {"forms 0": 4, "frontend 0": 5}, ["I7"]),
        (WHOLE, CRASHED, {"forms 0": 4}, ["I7"]),
    ],
)
def test_a_fault_in_mid_check_ends_one_process_and_no_answer(
    asked: list[dict[str, Any]], bomb: str, pids: dict[str, int], invariants: list[str]
) -> None:
    fault = attrs.evolve(STARVED, kind=FaultKind.KILL_FORMS, rank=0)
    refused = history_of()
    refused.end(Ending.REFUSED, 1.0, message=bomb)
    before = {"forms 0": 3, "frontend 0": 2}
    found = judge_form_fault(fault, [history_of(*asked)], [refused], (before, pids))
    assert [violation.invariant for violation in found] == invariants


def test_an_abort_takes_two_steps_and_the_time_of_the_news() -> None:
    assert judge_abort({"engine 0": 7}, {"engine 0": 7 + ABORT_STEPS_MAX}, 10.0) == []
    (violation,) = judge_abort({"engine 0": 7}, {"engine 0": 8 + ABORT_STEPS_MAX}, 10.0)
    assert violation.invariant == "I12"
    assert judge_abort({"engine 0": 7}, {"engine 0": 1000}, 0.0) == []  # steps of unknown length
    assert judge_abort({"engine 0": 7}, {"engine 0": 9 + 40}, 0.01, patience=2.0) == []
    assert judge_abort({"engine 0": 7}, {"engine 0": 9 + 40}, 0.01) != []


def test_health_must_tell_and_soon() -> None:
    assert judge_health("engine 0", 0.1) == []
    assert [v.invariant for v in judge_health("engine 0", 3.0)] == ["I10"]
    assert judge_health("engine 0", 3.0, patience=2.0) == []
    assert [v.invariant for v in judge_health("engine 0", None)] == ["I10"]


def test_nothing_outlives_the_root() -> None:
    assert judge_root_death([], [], [], 1.0) == []
    found = judge_root_death([4], ["@triolet-x"], ["a stream"], 1.0)
    assert [violation.invariant for violation in found] == ["I5", "I6", "I3"]


# ---- lives that a fault ends

KILL = attrs.evolve(STARVED, kind=FaultKind.KILL_ENGINE, rank=0)
EPOCHS = {"frontend 0": 1, "engine 0": 2, "engine 1": 3}
WITH_ITS_ENGINE = {**EPOCHS, "engine 0": 4}


@pytest.mark.parametrize(
    ("kind", "now", "invariants"),
    [
        (FaultKind.CRASH_WORKER, WITH_ITS_ENGINE, []),
        (FaultKind.CRASH_WORKER, EPOCHS, ["I11", "I10"]),  # the root suspects nobody
        (FaultKind.CRASH_WORKER, {**EPOCHS, "engine 0": 5}, ["I10"]),
        (FaultKind.CRASH_WORKER, {**EPOCHS, "engine 1": 4}, ["I7", "I11"]),
        (FaultKind.KILL_WORKER, EPOCHS, []),
        (FaultKind.KILL_WORKER, WITH_ITS_ENGINE, ["I7", "I10"]),
        (FaultKind.STOP_WORKER, WITH_ITS_ENGINE, ["I7", "I10"]),
        (FaultKind.HANG_WORKER, EPOCHS, []),
        (FaultKind.HANG_WORKER, WITH_ITS_ENGINE, []),
        (FaultKind.HANG_WORKER, {**EPOCHS, "engine 0": 5}, ["I10"]),
        (FaultKind.LINK_CUT, EPOCHS, []),
        (FaultKind.LINK_CUT, WITH_ITS_ENGINE, ["I7", "I10"]),
    ],
)
def test_whom_the_death_of_a_worker_takes_along(
    kind: FaultKind, now: dict[str, int], invariants: list[str]
) -> None:
    found = judge_lives(attrs.evolve(KILL, kind=kind), EPOCHS, now)
    assert [violation.invariant for violation in found] == invariants


@pytest.mark.parametrize(
    ("epoch", "invariants"), [(4, []), (5, []), (6, ["I10"]), (1, ["I11", "I10"])]
)
def test_a_spare_may_have_been_a_successor_when_it_was_killed(
    epoch: int, invariants: list[str]
) -> None:
    fault = attrs.evolve(KILL, kind=FaultKind.KILL_SPARE, also=("spare engine 0",))
    found = judge_lives(fault, EPOCHS, {**EPOCHS, "engine 0": epoch})
    assert [violation.invariant for violation in found] == invariants
