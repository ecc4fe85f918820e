"""Rates out of counts of engines, and which frontend writes them when."""

import logging

import attrs
import pytest
import trio.testing

from triolet.api.throughput import Throughput, ThroughputLog
from triolet.engine.messages import EngineStatistics
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.frontend.health import RuntimeStatistics

from .fakes import FakeGenerator

BUSY = EngineStatistics(
    step=10, running=2, waiting=1, kv_blocks=10, kv_blocks_free=4, prompt_tokens=100,
    output_tokens=50, prefix_queries=40, prefix_hits=10,
)  # fmt: skip
LATER = attrs.evolve(
    BUSY, step=90, prompt_tokens=300, output_tokens=250, prefix_queries=140, prefix_hits=60
)


def test_rates_are_of_the_time_between() -> None:
    throughput = Throughput()
    assert throughput.handle_counts({0: BUSY}, 100.0) is None
    assert throughput.handle_counts({0: LATER}, 110.0) == {
        "prompt_tokens_per_s": 20.0,
        "output_tokens_per_s": 20.0,
        "running": 2,
        "waiting": 1,
        "kv_usage_percent": 60.0,
        "prefix_hit_percent": 50.0,
    }


def test_the_next_life_of_an_engine_counts_from_its_beginning() -> None:
    throughput = Throughput()
    throughput.handle_counts({0: LATER, 1: LATER}, 100.0)
    said = throughput.handle_counts({1: LATER}, 110.0)  # 0 is between two lives
    assert said is not None
    assert said["output_tokens_per_s"] == 0
    said = throughput.handle_counts({0: BUSY, 1: LATER}, 120.0)
    assert said is not None
    assert said["output_tokens_per_s"] == 5.0


def test_an_engine_that_is_met_had_no_part_in_the_time_before() -> None:
    throughput = Throughput()
    throughput.handle_counts({}, 100.0)
    assert throughput.handle_counts({0: LATER}, 110.0) is None
    said = throughput.handle_counts({0: LATER, 1: LATER}, 120.0)
    assert said is not None
    assert said["output_tokens_per_s"] == 0


def test_an_idle_server_says_so_once() -> None:
    idle, throughput = attrs.evolve(LATER, running=0, waiting=0), Throughput()
    throughput.handle_counts({0: BUSY}, 100.0)
    said = [throughput.handle_counts({0: idle}, at) for at in (110.0, 120.0, 130.0)]
    assert [None if each is None else each["output_tokens_per_s"] for each in said] == [
        20.0,
        0.0,
        None,
    ]


@attrs.define(eq=False)
class CountingEngine(FakeGenerator):
    """Ten tokens more each time that it is looked at."""

    output_tokens: int = 0
    looks_before_its_counts: int = 3

    def statistics(self) -> RuntimeStatistics:
        if self.looks_before_its_counts:
            self.looks_before_its_counts -= 1
            return RuntimeStatistics()
        self.output_tokens += 10
        step, tokens = self.output_tokens, self.output_tokens
        return RuntimeStatistics({0: EngineStatistics(step=step, running=1, output_tokens=tokens)})


@pytest.mark.parametrize(("is_first", "period_s", "lines"), [
    (True, 10.0, 6), (False, 10.0, 0), (True, 0.0, 0),
])  # fmt: skip
async def test_one_line_each_period_by_one_frontend(
    is_first: bool,
    period_s: float,
    lines: int,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    caplog.set_level(logging.INFO)
    log = ThroughputLog(CountingEngine(), period_s, lambda: is_first)
    async with open_service(log.run, name="throughput-log"):
        await trio.sleep(3 + 65)  # each second until there are counts
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == lines
    wanted = "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 1.0 tokens/s"
    assert all(each.startswith(wanted) for each in said)
