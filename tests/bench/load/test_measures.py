"""Figures of made-up histories, computed by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.commands.figures import percentile
from triolet.bench.load.history import Outcome, RequestHistory
from triolet.bench.load.measures import Spread, measure
from triolet.fuzz.process_costs import Cost


def streamed(number: int, due_s: float, delta_times_s: list[float], tokens: int) -> RequestHistory:
    history = RequestHistory(number, due_s, due_s + 0.5)
    for at_s in delta_times_s:
        history.handle_delta("x", [], at_s)
    history.handle_usage(10, tokens)
    history.handle_end(Outcome.COMPLETED, delta_times_s[-1] + 0.1)
    return history


def test_a_run_is_summed_up() -> None:
    refused = RequestHistory(2, 0.0, 0.0)
    refused.handle_end(Outcome.REFUSED, 1.0, "503 overloaded")
    histories = [streamed(0, 0.0, [1.0, 2.0, 4.0], 6), streamed(1, 1.0, [2.0], 2), refused]
    before = {"frontend": Cost("frontend", 5, 1.0, 50.0), "engine": Cost("engine", 6, 0.0, 30.0)}
    after = {
        "frontend": Cost("frontend", 5, 3.0, 60.0),
        "engine": Cost("engine", 7, 9.0, 30.0),  # restarted: what it spent is not known
    }
    found = measure(histories, elapsed_s=4.0, client_cpu_s=0.8, before=before, after=after)
    assert (found.requests, found.completed) == (3, 2)
    assert found.errors == {"refused: 503 overloaded": 1}
    assert (found.requests_per_s, found.tokens_per_s, found.tokens_per_delta) == (0.5, 2.0, 2.0)
    assert (found.input_tokens, found.output_tokens) == (20, 8)
    assert found.first_token_s == Spread(1.0, 1.0, 1.0, 1.0, 1.0)
    assert (found.gap_s.mean, found.gap_s.largest) == (1.5, 2.0)
    assert found.total_s.largest == pytest.approx(4.1)
    assert found.late_s.largest == 0.5
    assert [row.name for row in found.processes] == ["frontend", "server", "client"]
    assert found.cost("frontend").cpu_us_per_token == pytest.approx(2.0 / 8 * 1e6)
    assert found.cost("client").cpu_us_per_token == pytest.approx(0.8 / 8 * 1e6)


def test_nothing_at_all_is_no_error() -> None:
    found = measure([], elapsed_s=1.0, client_cpu_s=0.0, before={}, after={})
    assert math.isnan(found.first_token_s.p50)
    assert [row.name for row in found.processes] == ["client"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], percent: float
) -> None:
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found in ordered
    not_exceeding = sum(value <= found for value in ordered)
    assert not_exceeding >= percent / 100 * len(ordered) - 1e-9
    smaller = [value for value in ordered if value < found]
    assert not smaller or len(smaller) < percent / 100 * len(ordered)
