"""Serving benchmarks: one small run of each through real processes that compute nothing."""

import pathlib
import socket

import attrs
import pytest
import trio

from triolet.bench.options import (
    LatencyOptions,
    PrefixOptions,
    Protocol,
    StartupOptions,
    ThroughputOptions,
)
from triolet.bench.serving.latency import measure_latency
from triolet.bench.serving.prefix import measure_prefix
from triolet.bench.serving.reference import (
    FROM_REFERENCE,
    TO_REFERENCE,
    Reference,
    ReferenceUnusable,
    open_reference,
)
from triolet.bench.serving.startup import measure_startup
from triolet.bench.serving.throughput import measure_throughput
from triolet.bench.steps.shapes import TINY, shape_folder
from triolet.engine.errors import InvalidParameter
from triolet.fuzz.chaos.served_run import is_apart
from triolet.runtime.config import AdmissionLimits
from triolet.transports.control.channel import ControlChannel


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


@pytest.mark.slow
async def test_turns_that_begin_alike_are_found_with_the_cache_alone() -> None:
    options = PrefixOptions(
        turns=6, conversations=2, system_tokens=64, user_tokens=4, tokens=3, seed=1
    )
    ended: list[int] = []
    on, off = await measure_prefix(
        None, options, engine={"executor": "null", "prefix_cache": False}, on_ended=ended.append
    )
    assert (on.cache, off.cache) == (True, False)
    assert on.turns == off.turns == 6
    # Prompts of two conversations: 68, 75 and 82 tokens.
    assert on.prompt_tokens == off.prompt_tokens == 2 * (68 + 75 + 82)
    # Each later turn has at least the four whole blocks of the system prompt.
    assert on.cached_tokens >= 4 * 64
    assert 0.5 < on.hit_rate < 1
    assert off.hit_rate == 0
    assert on.later_s.p50 > 0
    assert sum(ended) == 2 * 2 * (1 + 3)


MINI = attrs.evolve(TINY, name="mini", vocab_size=600, hidden_size=32, intermediate_size=48)
# Importing torch and transformers takes seconds, on a busy machine many.
TEST_BOUND_S = 120.0


@pytest.mark.slow
async def test_it_runs_and_says_what_it_is(tmp_path: pathlib.Path) -> None:
    folder = str(shape_folder(MINI, tmp_path))
    with trio.fail_after(TEST_BOUND_S):
        async with open_reference(folder, threads=1) as reference:
            assert reference.description.startswith("transformers ")
            assert reference.description.endswith(" 1 threads")
            run = await reference.run([[5, 6], [7]], 3)
            assert run.output_tokens == 6
        with pytest.raises(ReferenceUnusable, match="cannot load"):
            async with open_reference(str(tmp_path), threads=1):
                raise AssertionError("it cannot be opened")


async def test_a_batch_that_never_ends_is_given_up(autojump_clock: trio.abc.Clock) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        theirs,
        ControlChannel(ours, sends=TO_REFERENCE, receives=FROM_REFERENCE) as channel,
        pytest.raises(ReferenceUnusable, match="a batch took more than 1800 s"),
    ):
        await Reference("silent", 0, channel).run([[5]], 1)


@pytest.mark.slow
async def test_start_kill_and_ready_again() -> None:
    ended: list[int] = []
    found = await measure_startup(
        None, StartupOptions(quick=True), words=["--executor", "null"], on_ended=ended.append
    )
    assert ended == [1]
    assert found.frontend_s.runs == 1
    assert found.start_s.runs == found.restart_s.runs == found.engine_boot_s.runs == 1
    assert found.engine_boot_s.median < found.restart_s.median + 0.1
    # Spares may be there or not so soon after a start.
    assert {name for name in found.resident_mib if not is_apart(name)} == {
        *("root", "frontend 0", "engine 0", "engine 0/worker 0", "forms 0"),
    }
    assert min(found.resident_mib.values()) > 1


@pytest.mark.slow
async def test_rounds_are_counted_and_summed_up() -> None:
    options = ThroughputOptions(requests=5, prompt_min=2, prompt_max=4, tokens=6, rounds=2)
    ended: list[int] = []
    found = await measure_throughput(
        None, options, engine={"executor": "null"}, on_ended=ended.append
    )
    assert found.tokens_s.runs == found.elapsed_s.runs == 2
    assert found.tokens_s.least > 0
    assert sorted(found.cpu_us) == ["engine", "root", "worker"]
    assert sum(ended) == 3 * 5  # the first round warms up
    assert found.reference == ""


@pytest.mark.slow
async def test_more_requests_than_a_server_admits_are_answered_all_the_same() -> None:
    requests = AdmissionLimits().active_requests_max + 1
    options = ThroughputOptions(requests=requests, prompt_min=2, prompt_max=4, tokens=2, rounds=1)
    ended: list[int] = []
    await measure_throughput(None, options, engine={"executor": "null"}, on_ended=ended.append)
    assert sum(ended) == 2 * requests


@pytest.mark.slow
async def test_prompts_that_the_model_cannot_take_are_refused_before_a_round() -> None:
    options = ThroughputOptions(requests=1, prompt_max=10**6)
    with pytest.raises(InvalidParameter, match="prompt_max") as caught:
        await measure_throughput(None, options, engine={"executor": "null"})
    assert caught.value.parameter == "prompt_max"
