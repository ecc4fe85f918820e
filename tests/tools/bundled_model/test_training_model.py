"""The training model: it is causal, its cache changes nothing, and padding is not seen."""

from __future__ import annotations

import pytest
import torch

from triolet.tools.bundled_model.training_model import (
    Cache,
    ModelShape,
    TrainingModel,
    attend,
    rotate,
)

TINY = ModelShape(vocabulary=50, hidden=16, layers=2, head_channels=4, intermediate=24)


@pytest.fixture
def model() -> TrainingModel:
    torch.manual_seed(0)
    return TrainingModel(TINY).eval()


def test_parameter_names_are_those_of_hugging_face(model: TrainingModel) -> None:
    names = set(model.state_dict())
    assert "model.embed_tokens.weight" in names
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert "model.layers.0.post_attention_layernorm.weight" in names
    assert "model.norm.weight" in names
    assert not [name for name in names if "lm_head" in name]


@torch.inference_mode()
def test_a_later_token_does_not_change_earlier_logits(model: TrainingModel) -> None:
    first = model(torch.tensor([[1, 2, 3, 4]]))
    second = model(torch.tensor([[1, 2, 3, 9]]))
    torch.testing.assert_close(first[:, :3], second[:, :3])
    assert not torch.allclose(first[:, 3], second[:, 3])


@torch.inference_mode()
def test_the_cache_changes_nothing(model: TrainingModel) -> None:
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    whole = model(tokens)
    cache = Cache()
    parts = [model(tokens[:, :3], cache)]
    for position in (3, 4):
        parts.append(
            model(
                tokens[:, position : position + 1],
                cache,
                positions_BT=torch.tensor([[position]]),
                mask=torch.ones(1, position + 1, dtype=torch.bool),
            )
        )
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_attend_is_torchs_attention() -> None:
    torch.manual_seed(1)
    queries, keys, values = torch.randn(3, 2, 4, 6, 8).unbind()
    expected = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True
    )
    torch.testing.assert_close(attend(queries, keys, values, None), expected)


def test_rotation_depends_on_distance_only() -> None:
    torch.manual_seed(2)
    model = TrainingModel(TINY)
    query, key = torch.randn(2, 1, 1, 1, 4).unbind()

    def score(query_position: int, key_position: int) -> torch.Tensor:
        turned = [
            rotate(states, *model._rotation(torch.tensor([[position]])))
            for states, position in ((query, query_position), (key, key_position))
        ]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(5, 2), score(105, 102))
    assert not torch.allclose(score(5, 2), score(5, 4))
