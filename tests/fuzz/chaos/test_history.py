"""What a stream of events may not look like, whatever happened."""

from typing import Any

import pytest

from triolet.fuzz.chaos.history import Ending

from .histories import created, delta, end, failed, finished, history_of, invariants

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


def test_the_longest_pause_is_known() -> None:
    history = history_of(created(), delta(0))
    history.see(delta(1), 17.0)
    history.see(delta(2), 17.1)
    assert history.gap_s == pytest.approx(6.8)
    assert history.gap_ended_s == 17.0
