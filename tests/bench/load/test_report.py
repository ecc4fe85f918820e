"""Tables and JSON of made-up figures."""

import io

import pytest
from rich.console import Console

from triolet.bench.load.history import Outcome, RequestHistory
from triolet.bench.load.measures import Measures, measure
from triolet.bench.load.report import Bar, print_table


@pytest.fixture
def measures() -> Measures:
    history = RequestHistory(0, 0.0, 0.0)
    history.handle_usage(3, 5)
    history.handle_end(Outcome.COMPLETED, 0.25)
    return measure([history], elapsed_s=0.5, client_cpu_s=0.01, before={}, after={})


def test_the_table_has_rates_latencies_and_costs(measures: Measures) -> None:
    stream = io.StringIO()
    print_table(Console(file=stream, width=100), "a run", measures)
    text = stream.getvalue()
    for words in ("a run", "1 of 1 completed", "whole request", "250.00", "client", "2000.00"):
        assert words in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_alone(terminal: bool) -> None:
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=terminal, width=80), total=4)
    with bar.shown():
        bar.advance(1)
        bar.advance(3)
    assert ("4/4" in stream.getvalue()) == terminal
