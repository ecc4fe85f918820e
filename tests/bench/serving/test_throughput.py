"""Offline rounds through real processes that compute nothing."""

import pytest

from triolet.bench.options import ThroughputOptions
from triolet.bench.serving.throughput import measure_throughput, run_offline
from triolet.engine.errors import InvalidParameter
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.config import AdmissionLimits
from triolet.runtime.runtime import open_runtime


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
async def test_every_token_of_every_request_counts() -> None:
    async with open_runtime(executor="null") as runtime:
        params = SamplingParams(max_tokens=6, ignore_eos=True)
        run = await run_offline(runtime, [[5], [6, 7], [8]], params, salt="")
    assert (run.prompt_tokens, run.output_tokens) == (4, 18)
    assert run.output_tokens_s == 18 / run.elapsed_s


@pytest.mark.slow
async def test_prompts_that_the_model_cannot_take_are_refused_before_a_round() -> None:
    options = ThroughputOptions(requests=1, prompt_max=10**6)
    with pytest.raises(InvalidParameter, match="prompt_max") as caught:
        await measure_throughput(None, options, engine={"executor": "null"})
    assert caught.value.parameter == "prompt_max"
