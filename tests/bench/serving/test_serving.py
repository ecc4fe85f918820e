"""Serving benchmarks: one small run of each through real processes that compute nothing."""

import pathlib

import attrs
import pytest
import trio

from triolet.bench.options import (
    LatencyOptions,
    PrefixOptions,
    Protocol,
    StartupOptions,
)
from triolet.bench.serving.latency import measure_latency
from triolet.bench.serving.prefix import measure_prefix
from triolet.bench.serving.reference import (
    ReferenceUnusable,
    open_reference,
)
from triolet.bench.serving.startup import measure_startup
from triolet.bench.steps.shapes import TINY, shape_folder
from triolet.fuzz.chaos.served_run import is_apart


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
    assert found.idle_cores.runs == 1
