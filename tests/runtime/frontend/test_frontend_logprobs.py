"""Logprobs from an engine to a reader: one for each token, through faults and replays, too."""

import pathlib

import pytest

from triolet.engine.sampling_params import SamplingParams
from triolet.engine.worker.null.executor import null_logprob
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.fuzz.doubles.link_faults import FaultKind, NthFault
from triolet.runtime.frontend.generation import GenerationStream
from triolet.transports.links.link import Side

PROMPT = list(range(20, 60))
TOKENS = 12
PARAMS = SamplingParams(
    n=2, max_tokens=TOKENS, seed=3, ignore_eos=True, logprobs=2, prompt_logprobs=1
)


def check(stream: GenerationStream) -> None:
    """Every token has what the null executor says of it at its index, and no other."""
    told = stream.prompt_logprobs
    assert told is not None
    assert [token.token_id for token in told] == PROMPT[1:]
    for index, token in enumerate(told, 1):
        assert token.logprob == null_logprob(index, token.token_id)
        assert [token_id for token_id, _ in token.top] == [token.token_id]
    for choice in stream.choices:
        assert choice.logprobs is not None
        assert [token.token_id for token in choice.logprobs] == choice.token_ids
        for index, token in enumerate(choice.logprobs, len(PROMPT)):
            assert token.logprob == null_logprob(index, token.token_id)
            assert len(token.top) == 2


@pytest.mark.parametrize("step_tokens", [7, 256])
@pytest.mark.parametrize("streaming", [True, False])
async def test_each_token_has_its_own(
    null_folder: pathlib.Path, streaming: bool, step_tokens: int
) -> None:
    async with open_bed(null_folder, max_num_batched_tokens=step_tokens) as bed:
        async with bed.frontend.generate(PROMPT, PARAMS, streaming=streaming) as stream:
            taken = 0
            async for output in stream:
                assert (output.logprobs is None) == (not output.token_ids)
                taken += 0 if output.logprobs is None else len(output.logprobs)
        assert taken == 2 * TOKENS
        check(stream)


async def test_preempted_and_computed_again(null_folder: pathlib.Path) -> None:
    params = SamplingParams(
        max_tokens=60, seed=3, ignore_eos=True, logprobs=0, prompt_logprobs=0, n=4
    )
    async with open_bed(null_folder, kv_blocks=12) as bed:
        stream = await bed.answer(PROMPT, params)
        assert bed.servers[0].core.statistics().preemptions
    for choice in stream.choices:
        assert choice.logprobs is not None
        assert [token.token_id for token in choice.logprobs] == choice.token_ids


@pytest.mark.parametrize("kind", [FaultKind.DROP, FaultKind.DOUBLE])
async def test_through_a_link_that_loses_and_doubles(
    null_folder: pathlib.Path, kind: FaultKind
) -> None:
    for nth in range(2, 10):
        fault = NthFault(kind, Side.HUB, nth)
        async with (
            open_bed(null_folder, fault, max_num_batched_tokens=16) as bed,
            bed.frontend.generate(PROMPT, PARAMS) as stream,
        ):
            await stream.collect()
        check(stream)


async def test_on_another_engine_after_the_first_one_died(null_folder: pathlib.Path) -> None:
    for tokens_before in range(3):
        async with open_bed(null_folder, engines=2) as bed:
            async with bed.frontend.generate(PROMPT, PARAMS, credit=tokens_before) as stream:
                while stream.output_tokens < 2 * tokens_before:
                    await stream.__anext__()
                entry = bed.client.ledger.get(f"{stream.request_id}#0")
                bed.lose_engine(entry.peer.rank)
                stream.grant(100)
                await stream.collect()
            check(stream)


async def test_a_stop_string_takes_the_logprobs_of_what_came_after_it(bed: Bed) -> None:
    stream = await bed.answer(PROMPT, PARAMS)
    text = stream.text
    stop = text[len(text) // 2 :][:2]
    params = SamplingParams(max_tokens=TOKENS, seed=3, ignore_eos=True, logprobs=2, stop=[stop])
    stream = await bed.answer(PROMPT, params)
    assert stream.stop_reason == stop
    assert stream.logprobs is not None
    assert [token.token_id for token in stream.logprobs] == stream.token_ids
