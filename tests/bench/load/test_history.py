"""A history keeps what came, and its first end."""

from triolet.bench.load.history import Outcome, RequestHistory


def test_events_deltas_and_usage_are_kept() -> None:
    history = RequestHistory(3, due_s=1.0, sent_s=1.5)
    history.handle_event(0, 2.0)
    history.handle_event(4, 2.5)
    history.handle_delta("He", [5], 2.5)
    history.handle_event(6, 3.0)
    history.handle_delta("llo", [6, 7], 3.0)
    history.handle_usage(9, 3)
    assert list(history.numbers) == [0, 4, 6]
    assert list(history.delta_times_s) == [2.5, 3.0]
    assert (history.text, history.token_ids) == ("Hello", [5, 6, 7])
    assert (history.input_tokens, history.output_tokens) == (9, 3)


def test_only_the_first_end_counts() -> None:
    history = RequestHistory(0, due_s=0.0, sent_s=0.0)
    assert history.outcome is Outcome.RUNNING
    history.handle_end(Outcome.COMPLETED, 4.0)
    history.handle_end(Outcome.BROKEN, 5.0, "end of stream")
    assert (history.outcome, history.ended_s, history.error) == (Outcome.COMPLETED, 4.0, "")
