"""Times of requests, by bucket."""

from triolet.runtime.frontend.ledger_entry import Histogram, Latencies, RequestState


def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds)
    assert histogram.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert histogram.sum_s == 7.65


def test_a_request_counts_once_at_its_end() -> None:
    latencies, state = Latencies(), RequestState(10.0)
    state.handle_tokens(10.5)
    latencies.handle_end(state, 5, 12.0)
    assert latencies.first_token.sum_s == 0.5
    assert latencies.per_token.sum_s == 0.375
    assert latencies.whole.sum_s == 2.0


def test_without_a_token_nothing_is_counted() -> None:
    latencies = Latencies()
    latencies.handle_end(RequestState(10.0), 0, 12.0)
    one = RequestState(10.0)
    one.handle_tokens(11.0)
    latencies.handle_end(one, 1, 11.0)
    assert sum(latencies.first_token.counts) == 1
    assert sum(latencies.per_token.counts) == 0
