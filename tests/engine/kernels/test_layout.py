"""Places in memory: padding, halves of heads, gate beside up, and what is not served."""

import pathlib
from typing import Any

import attrs

from triolet.engine.kernels.layout import (
    ARCHITECTURES,
    Layout,
    Sizes,
    all_head_channels,
    gate_up_rows,
    head_channels,
    identity,
    kv_values,
    layout_fault,
)
from triolet.engine.model_config import config as model_config
from triolet.engine.model_config.config import ModelConfig, load_model_config

from ..model.tiny_models import write_config


def config(folder: pathlib.Path, **changes: Any) -> ModelConfig:
    return load_model_config(write_config(folder, **changes))


def test_sizes_are_padded_to_what_kernels_walk(tmp_path: pathlib.Path) -> None:
    sizes = Sizes.of(config(tmp_path, head_dim=20, hidden_size=100, intermediate_size=33))
    assert (sizes.hidden, sizes.head, sizes.heads, sizes.intermediate) == (128, 32, 128, 64)
    assert sizes.vocab == 128
    assert sizes.query_key_value == 8 * 32


def test_a_unit_of_odd_heads_is_filled_up(tmp_path: pathlib.Path) -> None:
    sizes = Sizes.of(
        config(tmp_path, head_dim=96, num_attention_heads=3, num_key_value_heads=3, hidden_size=96)
    )
    assert sizes.query_key_value == 10 * 96  # nine heads, two to a unit


def test_each_half_of_a_head_is_padded_by_itself(tmp_path: pathlib.Path) -> None:
    small = config(tmp_path, head_dim=6)
    channels = head_channels(small).tolist()
    assert channels == [0, 1, 2, *[-1] * 13, 3, 4, 5, *[-1] * 13]
    assert all_head_channels(small, 2).tolist()[32:35] == [6, 7, 8]


def test_gate_and_up_alternate_in_groups() -> None:
    gate, up = gate_up_rows(20, 32)
    assert gate.tolist() == [*range(16), *[-1] * 16, 16, 17, 18, 19, *[-1] * 28]
    assert up.tolist() == [*[-1] * 16, *range(16), *[-1] * 16, 16, 17, 18, 19, *[-1] * 12]


def test_identity_pads_with_nothing() -> None:
    assert identity(2, 4).tolist() == [0, 1, -1, -1]


def test_parts_do_not_overlap_and_depend_on_the_config_alone(tmp_path: pathlib.Path) -> None:
    layout = Layout.of(config(tmp_path, tie_word_embeddings=False, attention_bias=True))
    assert layout == Layout.of(load_model_config(tmp_path))
    parts = sorted(layout.parts.values(), key=lambda part: part.begin)
    ends = [0, *(part.end for part in parts)]
    assert all(part.begin >= end for part, end in zip(parts, ends, strict=False))
    assert all(part.begin % 4096 == 0 for part in parts)
    assert layout.size >= parts[-1].end
    assert {"embedding", "head", "norm", "1.attention_output_bias"} <= set(layout.parts)


def test_a_block_holds_keys_and_values_of_all_layers(tmp_path: pathlib.Path) -> None:
    assert kv_values(config(tmp_path, head_dim=64)) == 2 * 2 * 2 * 16 * 64


def test_what_the_kernels_lack_is_named(tmp_path: pathlib.Path) -> None:
    assert layout_fault(config(tmp_path)) == ""
    wide = config(tmp_path, head_dim=514, num_attention_heads=4)
    assert layout_fault(wide) == "heads of 514 channels are wider than 512"
    other = attrs.evolve(config(tmp_path), architecture="GPT2LMHeadModel")
    assert "GPT2LMHeadModel is none of LlamaForCausalLM" in layout_fault(other)


def test_experts_take_the_place_of_an_mlp_in_the_layers_that_have_them(
    tmp_path: pathlib.Path,
) -> None:
    experts = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
    moe = config(tmp_path, architectures=["Qwen3MoeForCausalLM"], mlp_only_layers=[0], **experts)
    sizes, parts = Sizes.of(moe), Layout.of(moe).parts
    assert (sizes.experts, sizes.expert_intermediate) == (16, 64)
    assert "0.gate_up" in parts
    assert "0.router" not in parts
    assert "1.gate_up" not in parts
    assert parts["1.router"].count == 16 * 64
    assert parts["1.experts_gate_up"].count == 5 * 128 * 64
    assert parts["1.experts_down"].count == 5 * 64 * 64


def test_every_family_of_the_loader_is_served() -> None:
    assert set(ARCHITECTURES) == set(model_config.ARCHITECTURES)
