"""Which loads are run, and what comes of them on a server that computes nothing."""

import pytest

from triolet.bench.load.options import Protocol
from triolet.bench.options import LatencyOptions
from triolet.bench.serving.latency import OPEN_IN_FLIGHT_MAX, loads, measure_latency


def test_every_protocol_has_every_concurrency_and_rate() -> None:
    options = LatencyOptions(
        protocols=(Protocol.LANES, Protocol.HTTP), concurrency=(1, 8), rates=(2.5,)
    )
    found = list(loads(options))
    assert [(p.value, load.in_flight, load.rate, load.requests) for p, load in found] == [
        ("lanes", 1, 0.0, 8),
        ("lanes", 8, 0.0, 32),
        ("lanes", OPEN_IN_FLIGHT_MAX, 2.5, 8),
        ("http", 1, 0.0, 8),
        ("http", 8, 0.0, 32),
        ("http", OPEN_IN_FLIGHT_MAX, 2.5, 8),
    ]
    assert len({load.seed for _, load in found}) == len(found)


@pytest.mark.slow
async def test_rows_of_a_server_that_is_started() -> None:
    options = LatencyOptions(
        protocols=(Protocol.LANES, Protocol.SSE),
        concurrency=(2,),
        rates=(500.0,),
        prompt_min=2,
        prompt_max=4,
        tokens=5,
        requests=4,
    )
    rows = await measure_latency(
        None, options, engine={"executor": "null"}, on_event=lambda _: None
    )
    assert [(row.protocol.value, row.loop()) for row in rows] == [
        ("lanes", "2"),
        ("lanes", "500/s"),
        ("sse", "2"),
        ("sse", "500/s"),
    ]
    assert all((row.measures.completed, row.measures.output_tokens) == (4, 20) for row in rows)
