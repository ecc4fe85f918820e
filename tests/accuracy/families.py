"""One random model of each family, in bfloat16 as real checkpoints are, and transformers' opinion.

Sizes are small enough for seconds and wide enough that sums of products round as in real models.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
import transformers

from .scored import Array, centred

# Its bar has a thread of its own, which would outlive its caller.
_transformers_logging: Any = transformers.utils.logging
_transformers_logging.disable_progress_bar()

VOCABULARY = 512
POSITIONS = 512
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# What a token says to routers, of two experts; all else that they see is about 1.
FIRST_CHOICE, SECOND_CHOICE = 12.0, 6.0
# Of matrices, in units of 1 / sqrt(inputs): logits spread by a few nats, as trained models' do.
SPREAD = 1.0


@attrs.frozen
class Family:
    """How `transformers` makes its model; `changes` are of `SIZES`."""

    name: str
    model_class: Any
    changes: dict[str, Any]


WINDOW = {"sliding_window": 70}
FAMILIES = (
    Family("llama", transformers.LlamaForCausalLM, {}),
    Family("mistral", transformers.MistralForCausalLM, WINDOW),
    Family("qwen2", transformers.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    Family("qwen3", transformers.Qwen3ForCausalLM, {"tie_word_embeddings": True}),
    Family(
        "qwen3 moe",
        transformers.Qwen3MoeForCausalLM,
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
            "norm_topk_prob": True,
        },
    ),
    Family("gemma3", transformers.Gemma3ForCausalLM, {**WINDOW, "query_pre_attn_scalar": 64}),
)


def save_model(folder: pathlib.Path, family: Family, *, seed: int = 3, **sizes: Any) -> None:
    """A random model of the family, saved in bfloat16."""
    torch.manual_seed(seed)
    model_class = family.model_class
    settings = {**SIZES, **family.changes, **sizes}
    if model_class is transformers.Qwen2ForCausalLM:
        del settings["head_dim"]  # which follows from the others there
    model = model_class(model_class.config_class(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=SPREAD / parameter.shape[-1] ** 0.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
            elif family.name != "gemma3":  # whose norms are stored less 1
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.uniform_(-0.5, 0.5)
        if "num_experts" in settings:
            _make_choices_clear(model, settings["num_experts"])
    model.to(torch.bfloat16).save_pretrained(folder)


def _make_choices_clear(model: Any, experts: int) -> None:
    """Each token has two experts, whatever layers add to it.

    Between random routers' choices there are near ties: a rounding that tips one over weighs more
    than all others together, and whose do is chance.
    """
    tokens = torch.arange(VOCABULARY)
    second = (tokens + 1 + tokens // experts % (experts - 1)) % experts
    embeddings = model.model.embed_tokens.weight
    embeddings[:, :experts] = 0
    embeddings[tokens, tokens % experts] = FIRST_CHOICE
    embeddings[tokens, second] = SECOND_CHOICE
    for layer in model.model.layers:
        layer.mlp.gate.weight.copy_(torch.eye(experts, embeddings.shape[1]))


def reference_logits(
    folder: pathlib.Path, tokens: Sequence[Sequence[int]], dtype: torch.dtype
) -> list[Array]:
    """Logits of transformers for all tokens but the last of each sequence, rows centred."""
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=dtype)
    model.eval()
    found = []
    with torch.inference_mode():
        for sequence in tokens:
            logits = model(torch.tensor([list(sequence)])).logits[0, :-1].float()
            found.append(centred(logits.double().numpy()))
    return found


def random_sequences(count: int, length: int) -> list[list[int]]:
    """Token ids from a seed, the same everywhere."""
    chance = np.random.default_rng(11)
    return [chance.integers(3, VOCABULARY, length).tolist() for _ in range(count)]
