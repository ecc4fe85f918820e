"""Mixtures of experts as old and new folders say them; what cannot be is named."""

from typing import Any

import pytest

from triolet.engine.errors import ModelFolderError
from triolet.engine.model_config.experts import EXPERTS_ALL_MAX, EXPERTS_MAX, Experts, read_experts
from triolet.engine.model_config.folder import Fields

USUAL = Experts(count=6, chosen=2, intermediate_size=768, normalized=False)


def read(layers: int = 4, **values: Any) -> tuple[Experts | None, frozenset[int]]:
    fields = {"num_experts": 6, "num_experts_per_tok": 2, **values}
    return read_experts(Fields("config.json", fields), layers)


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        ({}, {0, 1, 2, 3}),
        ({"num_experts": None, "num_local_experts": 6}, {0, 1, 2, 3}),
        ({"mlp_only_layers": [0, 3]}, {1, 2}),
        ({"mlp_only_layers": [], "decoder_sparse_step": 2}, {1, 3}),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 2}, {3}),
    ],
)
def test_layers_with_experts(values: dict[str, Any], layers: set[int]) -> None:
    assert read(**values) == (USUAL, frozenset(layers))


def test_defaults_are_those_of_the_format() -> None:
    assert read_experts(Fields("config.json", {}), 1)[0] == Experts(
        count=128, chosen=8, intermediate_size=768, normalized=False
    )


@pytest.mark.parametrize("values", [{"num_experts": 0}, {"mlp_only_layers": [0, 1, 2, 3]}])
def test_without_layers_that_have_them_there_are_no_experts(values: dict[str, Any]) -> None:
    assert read(**values) == (None, frozenset())


def test_experts_of_all_layers_together_are_bounded() -> None:
    layers = EXPERTS_ALL_MAX // EXPERTS_MAX
    experts, _ = read(layers, num_experts=EXPERTS_MAX)
    assert experts is not None
    with pytest.raises(ModelFolderError, match="num_experts of 33 layers are more than"):
        read(layers + 1, num_experts=EXPERTS_MAX)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"num_experts": EXPERTS_MAX + 1}, "num_experts must be a whole number from 0"),
        ({"num_experts": None, "num_local_experts": -1}, "num_local_experts must be a whole"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok 7 are more than 6 experts"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok must be a whole number from 1"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size must be a whole number"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be a whole number from 1"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false"),
        ({"mlp_only_layers": 3}, "mlp_only_layers must be a list of layers' numbers"),
        ({"mlp_only_layers": [True]}, "mlp_only_layers must be a list of layers' numbers"),
    ],
)
def test_what_cannot_be_is_named(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFolderError, match=reason):
        read(**values)
