"""The field's reference implementation beside ours: same logits, same greedy tokens.

`transformers` makes a tiny random model of a family and saves it; ours is loaded from that folder.
Each family's test file lists the configs that it is compared with.
"""

import pathlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import Tensor

from triolet.engine.model.decoder import Decoder
from triolet.engine.model.registry import load_model
from triolet.engine.model_config.config import load_model_config

from .tiny_models import CPU, Driver, random_tokens

# Its bar has a thread of its own, which would outlive the test.
_transformers_logging: Any = transformers.utils.logging
_transformers_logging.disable_progress_bar()

# float32 against float32, summed in another order.
RELATIVE_ERROR_MAX = 1e-4
VOCABULARY = 131
NOTHING: Mapping[str, Any] = MappingProxyType({})
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Past two key tiles of 64, and no multiple of anything.
PROMPT_TOKENS = 150


def save_reference(
    folder: pathlib.Path, model_class: Any, *, save: Mapping[str, Any] = NOTHING, **changes: Any
) -> Any:
    """A random model of this class, saved to `folder` in shards; `save` says how else."""
    torch.manual_seed(7)
    reference = model_class(model_class.config_class(**{**SIZES, **changes}))
    reference.eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if parameter.dim() > 1 or name.endswith("bias"):
                parameter.normal_(std=0.2)
            else:
                parameter.uniform_(0.5, 1.5)
    reference.save_pretrained(folder, max_shard_size="200KB", **save)
    assert (folder / "model.safetensors.index.json").exists()
    return reference


def load(folder: pathlib.Path, *, bitwise: bool) -> Decoder:
    """Our model of the folder."""
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


def check_against_reference(folder: pathlib.Path, model_class: Any, **changes: Any) -> None:
    """Compare logits of whole and chunked prompts in both modes, and greedy batches of 1 and 8."""
    reference = save_reference(folder, model_class, **changes)
    tokens = random_tokens(PROMPT_TOKENS, seed=3, vocab_size=VOCABULARY)
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0]
    for bitwise in (False, True):
        model = load(folder, bitwise=bitwise)
        whole = _logits(model, tokens, PROMPT_TOKENS)
        _assert_near(whole, expected)
        chunked = _logits(model, tokens, 48)
        _assert_near(chunked, expected)
        assert not bitwise or torch.equal(chunked, whole)
    prompts = [random_tokens(5 + 20 * row, seed=row, vocab_size=VOCABULARY) for row in range(8)]
    found = _greedy(model, prompts, 16)
    for prompt, tokens in zip(prompts, found, strict=True):
        assert greedy_after(reference, prompt, tokens) == tokens
    assert [_greedy(model, [prompt], 16)[0] for prompt in prompts[-2:]] == found[-2:]


def greedy_after(reference: Any, prompt: list[int], tokens: list[int]) -> list[int]:
    """What the reference finds likeliest after the prompt, and after each of these tokens.

    If they are the same it would have generated them; one pass tells, generating takes many.
    """
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + tokens[:-1]])).logits[0]
    likeliest: list[int] = logits[len(prompt) - 1 :].argmax(-1).tolist()
    return likeliest


def _logits(model: Decoder, tokens: list[int], chunk: int) -> Tensor:
    driver = Driver(model, [list(range(13))])
    begins = range(0, len(tokens), chunk)
    return torch.cat([driver.step([(0, begin, tokens[begin : begin + chunk])]) for begin in begins])


def _assert_near(logits: Tensor, expected: Tensor) -> None:
    error = float((logits - expected).abs().max() / expected.abs().max())
    assert error < RELATIVE_ERROR_MAX, error


def _greedy(model: Decoder, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """All prompts in one batch, then a token of each in every step."""
    tables = [list(range(12 * row, 12 * row + 12)) for row in range(len(prompts))]
    driver = Driver(model, tables)
    sequences = [list(prompt) for prompt in prompts]
    work = [(row, 0, prompt) for row, prompt in enumerate(prompts)]
    for _ in range(max_tokens):
        logits = driver.step(work)
        ends = torch.tensor([len(tokens) for _, _, tokens in work]).cumsum(0) - 1
        for sequence, token in zip(sequences, logits[ends].argmax(-1).tolist(), strict=True):
            sequence.append(token)
        work = [(row, len(tokens) - 1, tokens[-1:]) for row, tokens in enumerate(sequences)]
    return [sequence[len(prompt) :] for prompt, sequence in zip(prompts, sequences, strict=True)]
