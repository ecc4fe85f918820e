"""What each family asks of its weights: the names that its checkpoints have, in their shapes."""

import pathlib
from typing import Any

import pytest
import torch
import transformers

from triolet.engine.model.layer_weights import LayerWeights
from triolet.engine.model.loader import PlannedWeights
from triolet.engine.model.registry import plan_weights
from triolet.engine.model_config.config import load_model_config

from .reference import SIZES
from .tiny_models import write_config


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True}),
        ("Mistral", {"head_dim": 12}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 24}),
        ("Qwen3", {"head_dim": 16, "attention_bias": True}),
        ("Gemma3", {"head_dim": 24}),
        ("Gemma3", {"head_dim": 16, "attention_bias": True}),
    ],
)
def test_a_family_takes_what_its_checkpoints_have(
    tmp_path: pathlib.Path, name: str, changes: dict[str, Any], tied: bool
) -> None:
    model_class: Any = {
        "Llama": transformers.LlamaForCausalLM,
        "Mistral": transformers.MistralForCausalLM,
        "Qwen2": transformers.Qwen2ForCausalLM,
        "Qwen3": transformers.Qwen3ForCausalLM,
        "Gemma3": transformers.Gemma3ForCausalLM,
    }[name]
    settings = {**SIZES, **changes, "tie_word_embeddings": tied}
    with torch.device("meta"):
        reference = model_class(model_class.config_class(**settings))
    expected = {name: tuple(tensor.shape) for name, tensor in reference.named_parameters()}
    absent = {"head_dim": None, "rope_theta": None}
    config = load_model_config(
        write_config(tmp_path, architectures=[model_class.__name__], **{**absent, **settings})
    )
    assert plan_weights(config) == expected


def test_heads_are_normed_by_their_kind(tmp_path: pathlib.Path) -> None:
    weights = PlannedWeights()
    config = load_model_config(write_config(tmp_path))
    layer = LayerWeights(config, 0, weights, "layer.", bitwise=True)
    norm = layer.head_norm("q", "k")
    assert weights.taken == {"layer.q.weight": (16,), "layer.k.weight": (16,)}
    assert norm(torch.ones(16, 6, 16, device="meta")).shape == (16, 6, 16)
