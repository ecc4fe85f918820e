"""The model against the field's reference implementation: same logits, same greedy tokens."""

import pathlib
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from triolet.engine.model.registry import Model, load_model
from triolet.engine.model_config import load_model_config

from .tiny_models import CPU, Driver, random_tokens

pytestmark = pytest.mark.slow
# float32 against float32, summed in another order.
RELATIVE_ERROR_MAX = 1e-4
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


@pytest.fixture(params=list(VARIANTS), scope="module")
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pathlib.Path, Any]:
    """A random reference model, and the folder that it wrote itself to, in two shards."""
    config = transformers.LlamaConfig(
        vocab_size=131,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        **VARIANTS[request.param],
    )
    torch.manual_seed(7)
    reference: Any = transformers.LlamaForCausalLM(config)
    reference.eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
            else:
                parameter.uniform_(0.5, 1.5)
    folder = tmp_path_factory.mktemp("saved")
    reference.save_pretrained(folder, max_shard_size="200KB")
    assert (folder / "model.safetensors.index.json").exists()
    return folder, reference


def load(folder: pathlib.Path, *, bitwise: bool) -> Model:
    config = load_model_config(folder)
    return load_model(
        folder,
        config,
        load_format="auto",
        bitwise=bitwise,
        positions=config.max_model_len,
        device=CPU,
        progress=lambda fraction: None,
    )


def reference_logits(reference: Any, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = reference(torch.tensor([tokens])).logits[0]
    return logits


def assert_near(logits: Tensor, expected: Tensor) -> None:
    error = (logits - expected).abs().max() / expected.abs().max()
    assert error < RELATIVE_ERROR_MAX


@pytest.mark.parametrize("bitwise", [True, False])
def test_logits_of_a_whole_and_a_chunked_prompt(
    saved: tuple[pathlib.Path, Any], bitwise: bool
) -> None:
    folder, reference = saved
    model = load(folder, bitwise=bitwise)
    tokens = random_tokens(200, seed=3, vocab_size=131)
    expected = reference_logits(reference, tokens)
    assert_near(Driver(model, [list(range(13))]).step([(0, 0, tokens)]), expected)
    driver = Driver(model, [list(range(13))])
    parts = [driver.step([(0, begin, tokens[begin : begin + 48])]) for begin in range(0, 200, 48)]
    assert_near(torch.cat(parts), expected)


@pytest.mark.parametrize("rows", [1, 8])
def test_greedy_tokens(saved: tuple[pathlib.Path, Any], rows: int) -> None:
    folder, reference = saved
    model = load(folder, bitwise=True)
    driver = Driver(model, [list(range(8 * row, 8 * row + 8)) for row in range(rows)])
    prompts = [random_tokens(20 + 9 * row, seed=row, vocab_size=131) for row in range(rows)]
    sequences = [list(prompt) for prompt in prompts]
    work = [(row, 0, prompt) for row, prompt in enumerate(prompts)]
    for _ in range(24):
        logits = driver.step(work)
        ends = torch.tensor([len(tokens) for _, _, tokens in work]).cumsum(0) - 1
        chosen = logits[ends].argmax(-1).tolist()
        for sequence, token in zip(sequences, chosen, strict=True):
            sequence.append(token)
        work = [(row, len(tokens) - 1, [tokens[-1]]) for row, tokens in enumerate(sequences)]
    for prompt, sequence in zip(prompts, sequences, strict=True):
        logits = reference_logits(reference, sequence[:-1])
        expected = logits[len(prompt) - 1 :].argmax(-1).tolist()
        assert sequence[len(prompt) :] == expected
