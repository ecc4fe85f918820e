"""Prompts of embeddings through frontend and engine: counted, refused, sent again, never shared."""

import json
import os
import pathlib
import signal
from typing import Any

import attrs
import pytest
import safetensors.torch
import torch
import trio

from triolet.engine.errors import InvalidParameter, PromptTooLong
from triolet.engine.messages import Utility
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.model.weight_folder import SINGLE_FILE
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.nurseries.processes.spares import APART
from triolet.runtime.config import AdmissionLimits
from triolet.runtime.errors import Overloaded
from triolet.runtime.runtime import open_runtime
from triolet.runtime.text.prompts import PromptEmbeds
from triolet.transports.codec import ARRAY_FRAME_BYTES

from ...leaks import check_no_leaks
from ..acting import DEADLINE_S

HIDDEN_SIZE = 4
PARAMS = SamplingParams(max_tokens=12, seed=3, ignore_eos=True)


def embeddings(tokens: int, first: int = 0) -> PromptEmbeds:
    """Each row another one."""
    row_bytes = 2 * HIDDEN_SIZE
    rows = b"".join((first + row).to_bytes(row_bytes, "little") for row in range(tokens))
    return PromptEmbeds(rows, (tokens, HIDDEN_SIZE), "bfloat16")


async def tokens_of(bed: Bed, prompt: Any, **changes: Any) -> list[int]:
    params = attrs.evolve(PARAMS, **changes)
    stream = await bed.answer(prompt, params)
    assert not stream.usage.cached_tokens
    return stream.token_ids


async def test_every_embedding_reaches_the_executor(null_folder: pathlib.Path) -> None:
    # A token depends on the last embedding of the prompt, which comes in the third chunk.
    async with open_bed(null_folder, max_num_batched_tokens=16) as bed:
        one = await tokens_of(bed, embeddings(40))
        assert await tokens_of(bed, embeddings(40)) == one
        assert await tokens_of(bed, embeddings(40, first=1)) != one
        assert await tokens_of(bed, embeddings(39, first=1)) == one
        assert await tokens_of(bed, [0] * 40) != one
        await bed.wait_quiet()
        assert bed.frontend.admission.embeds_bytes == 0
        assert bed.servers[0].core.statistics().prefix_hits == 0


async def test_usage_counts_a_token_for_each_row(null_folder: pathlib.Path) -> None:
    async with (
        open_bed(null_folder) as bed,
        bed.frontend.generate(embeddings(5), attrs.evolve(PARAMS, n=2)) as stream,
    ):
        await stream.collect()
        assert bed.frontend.admission.embeds_bytes == 2 * 5 * 2 * HIDDEN_SIZE
    assert (stream.prompt_token_ids, stream.usage.prompt_tokens) == ([0] * 5, 5)
    assert stream.choices[0].token_ids != stream.choices[1].token_ids


async def test_the_end_of_a_prompt_may_be_enough(bed: Bed) -> None:
    whole = await tokens_of(bed, embeddings(7, first=3))
    assert await tokens_of(bed, embeddings(10), truncate_prompt_tokens=7) == whole


@pytest.mark.parametrize("tokens", [20, 256])
async def test_they_are_sent_again_to_another_engine(
    null_folder: pathlib.Path, tokens: int
) -> None:
    async with open_bed(null_folder, max_num_batched_tokens=16) as bed:
        alone = await tokens_of(bed, embeddings(tokens))
    for tokens_before in range(3):
        async with open_bed(null_folder, engines=2, max_num_batched_tokens=16) as bed:
            prompt = embeddings(tokens)
            async with bed.frontend.generate(prompt, PARAMS, credit=tokens_before) as stream:
                while stream.output_tokens < tokens_before:
                    await stream.__anext__()
                entry = bed.client.ledger.get(stream.request_id)
                bed.lose_engine(entry.peer.rank)
                stream.grant(100)
                await stream.collect()
            assert stream.token_ids == alone


async def test_refusals_name_the_field(bed: Bed) -> None:
    with pytest.raises(InvalidParameter, match="prompt_embeds must have the shape 1 × 4 here"):
        await tokens_of(bed, PromptEmbeds(bytes(12), (1, 3)))
    with pytest.raises(InvalidParameter, match="prompt_logprobs must not be together"):
        await tokens_of(bed, embeddings(3), prompt_logprobs=1)
    with pytest.raises(PromptTooLong):
        await tokens_of(bed, embeddings(512))
    assert bed.frontend.admission.embeds_bytes == 0
    assert len(await tokens_of(bed, embeddings(3))) == 12


async def test_bytes_of_all_requests_are_bounded(bed: Bed) -> None:
    limits = AdmissionLimits(embeds_bytes_max=100)
    bed.frontend.admission.limits = limits
    async with bed.frontend.generate(embeddings(12), PARAMS):
        with pytest.raises(Overloaded, match="embeds_bytes_max"):
            await tokens_of(bed, embeddings(1))
    assert len(await tokens_of(bed, embeddings(12))) == 12
    bed.frontend.admission.check_invariants()


@pytest.mark.slow
async def test_a_killed_worker_does_not_change_a_token() -> None:
    """Real processes and the bundled model: an array of its own frame, a memfd to the worker."""
    ids = [5 + 7 * number % 2000 for number in range(150)]
    weights = safetensors.torch.load_file(bundled_model_folder() / SINGLE_FILE)
    rows = weights["model.embed_tokens.weight"][torch.tensor(ids)].float()
    prompt = PromptEmbeds.of(rows)
    assert len(prompt.data) > ARRAY_FRAME_BYTES
    params = attrs.evolve(PARAMS, max_tokens=40, logprobs=1, repetition_penalty=1.0)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_runtime(max_num_batched_tokens=64) as runtime:
            async with runtime.generate(ids, params) as wanted:
                await wanted.collect()
            async with runtime.generate(prompt, params, credit=5) as stream:
                while stream.output_tokens < 5:
                    await anext(stream)
                entry = runtime.client.ledger.get(stream.request_id)
                assert entry is not None
                assert entry.peer is not None
                peer = entry.peer
                tree = await runtime.client.call_utility(
                    peer, Utility.TASK_TREE, timeout_s=DEADLINE_S
                )
                # There may be a spare beside it, and what forks spares.
                (worker,) = [
                    each
                    for each in json.loads(tree)["processes"]
                    if not each["name"].startswith(APART)
                ]
                os.kill(worker["pid"], signal.SIGKILL)
                stream.grant(100)
                await stream.collect()
                (engine,) = runtime.health().engines
                assert engine.epoch == peer.epoch
            assert runtime.client.ledger.sent_again == 0
    assert stream.token_ids == wanted.token_ids
    assert stream.logprobs == wanted.logprobs
