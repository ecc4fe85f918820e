"""Every family through frontend and engine: greedy answers are the reference's, one or eight."""

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
import trio

from triolet.engine.messages import FinishReason
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, open_bed

from ...engine.model.reference import VOCABULARY, greedy_after, save_reference
from ...engine.model.tiny_models import random_tokens
from ..model_folders import byte_level_tokenizer, write_folder

pytestmark = pytest.mark.slow
TOKENS = 12
WINDOW = {"sliding_window": 40, "use_sliding_window": True, "max_window_layers": 1}
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaForCausalLM, {"tie_word_embeddings": True}),
    "mistral": (transformers.MistralForCausalLM, {"sliding_window": 40}),
    "qwen2": (transformers.Qwen2ForCausalLM, WINDOW),
    "qwen3": (transformers.Qwen3ForCausalLM, {"head_dim": 32}),
}


@pytest.fixture(autouse=True)
def threads_as_they_were() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", list(FAMILIES))
async def test_greedy_answers_are_the_references(tmp_path: pathlib.Path, family: str) -> None:
    model_class, changes = FAMILIES[family]
    reference = save_reference(tmp_path, model_class, **changes)
    write_folder(tmp_path, byte_level_tokenizer())
    prompts = [random_tokens(6 + 19 * row, seed=row, vocab_size=VOCABULARY) for row in range(8)]
    answers: dict[int, list[int]] = {}
    params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)

    async def answer(bed: Bed, index: int) -> None:
        async with bed.frontend.generate(prompts[index], params) as stream:
            await stream.collect()
        assert stream.finish_reason is FinishReason.LENGTH
        answers[index] = stream.token_ids

    # Chunks end in the middle of most prompts.
    engine: dict[str, Any] = {"executor": "torch", "threads": 1, "max_num_batched_tokens": 48}
    async with open_bed(tmp_path, **engine) as bed:
        await answer(bed, 7)
        alone = answers.pop(7)
        async with trio.open_nursery() as nursery:
            for index in range(8):
                nursery.start_soon(answer, bed, index)
    assert answers[7] == alone
    for index, prompt in enumerate(prompts):
        assert len(answers[index]) == TOKENS
        assert greedy_after(reference, prompt, answers[index]) == answers[index]
