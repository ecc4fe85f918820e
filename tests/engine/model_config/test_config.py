"""Model folders are anybody's: what is read of config.json, and how a bad one is refused."""

import json
import pathlib
from typing import Any

import pytest

from triolet.engine.errors import ModelFolderError
from triolet.engine.model_config.config import (
    GELU_TANH,
    GEMMA3,
    GEMMA3_MULTIMODAL,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    load_model_config,
    load_model_limits,
)
from triolet.engine.model_config.experts import EXPERTS_ALL_MAX, EXPERTS_MAX, Experts, read_experts
from triolet.engine.model_config.folder import ConfigFields
from triolet.engine.model_config.rope import (
    POSITIONS_MAX,
    LinearScaling,
    Llama3Scaling,
    Rope,
    YarnScaling,
    read_rope,
    read_window_ropes,
    stretched_length,
)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def write(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    values = {**CONFIG, **changes}
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in values.items() if value is not None})
    )
    return folder


def test_defaults_are_those_of_the_format(tmp_path: pathlib.Path) -> None:
    config = load_model_config(write(tmp_path))
    assert (config.kv_heads, config.head_size) == (4, 16)
    assert (config.norm_epsilon, config.rope) == (1e-6, Rope(10_000.0, None))
    assert (config.layers, config.windows) == (2, (0, 0))
    assert (config.attention_bias, config.mlp_bias) == (False, False)
    assert (config.tied_embeddings, config.dtype) == (False, "float32")
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_dtype_of_old_and_new_folders(tmp_path: pathlib.Path, name: str) -> None:
    assert load_model_config(write(tmp_path, **{name: "bfloat16"})).dtype == "bfloat16"


def test_generation_config_decides_about_end_tokens(tmp_path: pathlib.Path) -> None:
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    config = load_model_config(tmp_path)
    assert config.eos_token_ids == (7, 9)
    assert config.bos_token_id == 1


def test_what_a_family_leaves_out_is_what_transformers_takes_it_for(tmp_path: pathlib.Path) -> None:
    plain = {"num_attention_heads": 64, "hidden_size": 128, "max_position_embeddings": None}
    found = {}
    for name in (LLAMA, MISTRAL, QWEN2, QWEN3):
        config = load_model_config(write(tmp_path, architectures=[name], **plain))
        found[name] = (config.kv_heads, config.head_size, config.windows, config.max_model_len)
    assert found == {
        LLAMA: (64, 2, (0, 0), 2048),
        MISTRAL: (8, 2, (4096, 4096), 131_072),
        QWEN2: (32, 2, (0, 0), 32_768),
        QWEN3: (32, 128, (0, 0), 32_768),
    }
    (tmp_path / "config.json").write_text(
        json.dumps({**CONFIG, "architectures": [MISTRAL], "num_key_value_heads": None})
    )
    assert load_model_config(tmp_path).kv_heads == 4  # null is not "left out"


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (20, 20, 20, 20, 20, 0, 20)),
        ({"sliding_window_pattern": 2}, (20, 0, 20, 0, 20, 0, 20)),
        ({"_sliding_window_pattern": 3}, (20, 20, 0, 20, 20, 0, 20)),
        ({"layer_types": ["full_attention"] * 6 + ["sliding_attention"]}, (0,) * 6 + (20,)),
    ],
)
def test_windows_of_gemma(
    tmp_path: pathlib.Path, changes: dict[str, Any], windows: tuple[int, ...]
) -> None:
    own = {"architectures": [GEMMA3], "num_hidden_layers": 7, "sliding_window": 20}
    config = load_model_config(write(tmp_path, **{**own, **changes}))
    assert config.windows == windows
    assert (config.heads, config.kv_heads, config.head_size) == (4, 4, 256)
    assert (config.query_scale, config.embedding_scale) == (1 / 16, 8.0)
    assert (config.activation, config.norm_offset) == (GELU_TANH, 1.0)
    assert (config.rope.theta, config.window_rope.theta) == (1e6, 1e4)
    assert (config.tied_embeddings, config.logit_softcap) == (True, None)


def test_the_text_part_of_a_model_that_sees(tmp_path: pathlib.Path) -> None:
    """As published: the part says little, the whole has the end tokens and the type."""
    part = {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    stretch = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    whole = {
        "architectures": [GEMMA3_MULTIMODAL],
        "eos_token_id": [1, 106],
        "text_config": {**part, **stretch, "eos_token_id": 7, "vocab_size": 262_208},
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152},
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    config = load_model_config(tmp_path)
    assert (config.hidden_size, config.layers, config.vocab_size) == (2560, 34, 262_208)
    assert (config.eos_token_ids, config.bos_token_id, config.dtype) == ((1, 106), 2, "bfloat16")
    assert config.rope == Rope(1e6, LinearScaling(8.0))
    # Published positions are those after the stretch.
    assert config.max_model_len == load_model_limits(tmp_path).max_model_len == 131_072


def test_experts_of_layers(tmp_path: pathlib.Path) -> None:
    own = {"architectures": [QWEN3_MOE], "num_key_value_heads": 2, "mlp_only_layers": [0]}
    config = load_model_config(write(tmp_path, **own))
    assert config.expert_layers == {1}
    assert config.experts == Experts(count=128, chosen=8, intermediate_size=768, normalized=False)
    assert config.windows == (0, 0)
    window = {"use_sliding_window": True, "sliding_window": 9}
    assert load_model_config(write(tmp_path, **own, **window)).windows == (9, 9)


USED = {"architectures": [QWEN2], "num_key_value_heads": 2, "use_sliding_window": True}
SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({**USED, "use_sliding_window": False, "sliding_window": 8}, (0, 0)),
        ({**USED, "sliding_window": 8, "max_window_layers": 0}, (8, 8)),
        ({**USED, "sliding_window": 8, "max_window_layers": 1}, (0, 8)),
        ({**USED, "sliding_window": 8, "max_window_layers": 2}, (0, 0)),
        ({**USED, "sliding_window": 8, "layer_types": [SLIDING, FULL]}, (8, 0)),
        ({"architectures": [MISTRAL], "num_key_value_heads": 2, "sliding_window": 8}, (8, 8)),
    ],
)
def test_windows_of_layers(
    tmp_path: pathlib.Path, changes: dict[str, Any], windows: tuple[int, ...]
) -> None:
    assert load_model_config(write(tmp_path, **changes)).windows == windows


def test_a_stretch_of_rope_lengthens_what_is_served(tmp_path: pathlib.Path) -> None:
    write(tmp_path, rope_scaling={"rope_type": "linear", "factor": 4.0})
    assert load_model_config(tmp_path).max_model_len == 1024
    assert load_model_limits(tmp_path).max_model_len == 1024


def test_code_in_the_folder_is_not_looked_at(tmp_path: pathlib.Path) -> None:
    (tmp_path / "modeling.py").write_text("raise SystemExit")
    write(tmp_path, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    assert load_model_config(tmp_path).architecture == LLAMA


def test_limits_are_read_of_any_architecture(tmp_path: pathlib.Path) -> None:
    limits = load_model_limits(write(tmp_path, architectures=["Unheard"], hidden_size=None))
    assert (limits.vocab_size, limits.max_model_len, limits.eos_token_ids) == (1000, 256, (2,))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", True),
        ("vocab_size", 2),  # does not cover the end token
        ("hidden_size", -1),
        ("hidden_size", "64"),
        ("hidden_size", 10**12),
        ("intermediate_size", None),
        ("num_attention_heads", 1.5),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", "small"),
        ("rope_theta", 10**400),
        ("rope_scaling", {"rope_type": "longrope"}),
        ("rope_scaling", []),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 10**12),
        ("vocab_size", 10**12),
        ("tie_word_embeddings", "yes"),
        ("dtype", "float8"),
        ("eos_token_id", "</s>"),
        ("eos_token_id", [1, -2]),
        ("architectures", ["GPT2LMHeadModel"]),
        ("architectures", None),
        ("attention_bias", 1),
        ("mlp_bias", "no"),
        ("hidden_act", "gelu"),
        ("quantization_config", {"bits": 4}),
        ("sliding_window", 4096),
    ],
)
def test_a_field_that_cannot_be_served_is_named(
    tmp_path: pathlib.Path, field: str, value: Any
) -> None:
    with pytest.raises(ModelFolderError) as caught:
        load_model_config(write(tmp_path, **{field: value}))
    assert caught.value.path == str(tmp_path / "config.json")
    known = {"eos_token_id": ("eos_token_id",), "rope_scaling": ("rope",)}
    words = known.get(field, (field.removesuffix("_key_value_heads"), "num_attention_heads"))
    assert any(word in caught.value.reason for word in words)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "LlamaForCausalLM, Mistral.* are"),
        ({"architectures": [MISTRAL], "attention_bias": True}, "attention_bias is not served"),
        ({"architectures": [QWEN2], "attention_bias": True}, "attention_bias is not served"),
        ({"architectures": [QWEN3], "mlp_bias": True}, "mlp_bias is not served"),
        ({"architectures": [MISTRAL], "layer_types": [FULL, FULL]}, "layer_types are not served"),
        ({**USED, "layer_types": [FULL]}, "one type for each of 2 layers"),
        ({**USED, "layer_types": [FULL, "linear_attention"]}, "must be full_attention or"),
        ({**USED, "layer_types": [FULL, []]}, "must be full_attention or"),
        (
            {**USED, "use_sliding_window": False, "layer_types": [FULL, SLIDING]},
            "no sliding_window",
        ),
        ({"architectures": [GEMMA3], "hidden_activation": "gelu"}, "hidden_activation is not serv"),
        ({"architectures": [GEMMA3], "attn_logit_softcapping": 50.0}, "attn_logit_softcapping is"),
        ({"architectures": [GEMMA3], "use_bidirectional_attention": True}, "only causal models"),
        ({"architectures": [GEMMA3], "sliding_window": None, "layer_types": []}, "one type for"),
        ({"architectures": [GEMMA3], "query_pre_attn_scalar": 0}, "query_pre_attn_scalar must"),
        (
            {"architectures": [GEMMA3_MULTIMODAL], "text_config": []},
            "text_config must be an object",
        ),
        ({"architectures": [QWEN3_MOE], "mlp_bias": True}, "mlp_bias is not served"),
        (
            {**USED, "architectures": [QWEN3_MOE], "sliding_window": 8, "max_window_layers": 1},
            "max_window_layers is not served",
        ),
        ({**USED, "use_sliding_window": 1}, "use_sliding_window must be true or false"),
        ({**USED, "max_window_layers": -1}, "max_window_layers must be a whole number from 0"),
    ],
)
def test_a_variant_that_is_not_served_is_named(
    tmp_path: pathlib.Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelFolderError, match=reason):
        load_model_config(write(tmp_path, **{**changes, "num_key_value_heads": 2}))


USUAL = Experts(count=6, chosen=2, intermediate_size=768, normalized=False)


def read(layers: int = 4, **values: Any) -> tuple[Experts | None, frozenset[int]]:
    fields = {"num_experts": 6, "num_experts_per_tok": 2, **values}
    return read_experts(ConfigFields("config.json", fields), layers)


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


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def fields(**values: Any) -> ConfigFields:
    return ConfigFields("config.json", values)


@pytest.mark.parametrize(
    "values",
    [
        {"rope_scaling": LLAMA3, "rope_theta": 5e5},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}, "rope_theta": 1e4},
        {"rope_scaling": {**LLAMA3, "type": "llama3"}, "rope_theta": 5e5},
    ],
)
def test_old_and_new_folders(values: dict[str, Any]) -> None:
    assert read_rope(fields(**values), 256) == Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        (None, None),
        ({}, None),
        ({"rope_type": "default"}, None),
        ({"rope_type": "dynamic", "factor": 2}, None),
        ({"type": "linear", "factor": 2}, LinearScaling(2.0)),
        ({**LLAMA3, "original_max_position_embeddings": None}, Llama3Scaling(8.0, 1.0, 4.0, 256)),
        (
            {"rope_type": "yarn", "original_max_position_embeddings": 64, "attention_factor": 1.5},
            YarnScaling(4.0, 32.0, 1.0, 64, 1.5, truncate=True),
        ),
    ],
)
def test_variants(parameters: Any, scaling: Any) -> None:
    assert read_rope(fields(rope_scaling=parameters), 256) == Rope(10_000.0, scaling)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not served: default, linear"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "is not served"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor must be a number, not None"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "factor must be from"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor must be below"),
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1e4}}, "whole number"),
        ({"rope_scaling": []}, "rope_scaling must be an object"),
        ({"rope_parameters": {"full_attention": {}}}, "differ between layers"),
        ({"rope_theta": 1}, "rope_theta must be from 1.001"),
        ({"rope_theta": 10**400}, "rope_theta must be from"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not served"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not served"),
    ],
)
def test_what_is_not_served_is_named(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFolderError, match=reason):
        read_rope(fields(**values), 256)


LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("values", "ropes"),
    [
        ({}, (Rope(1e6, None), Rope(1e4, None))),
        ({"rope_theta": 5e5, "rope_local_base_freq": 2e4}, (Rope(5e5, None), Rope(2e4, None))),
        ({"rope_scaling": LINEAR}, (Rope(1e6, LinearScaling(8.0)), Rope(1e4, None))),
        (
            {
                "rope_parameters": {
                    FULL: {**LINEAR, "rope_theta": 3e6},
                    SLIDING: None,
                }
            },
            (Rope(3e6, LinearScaling(8.0)), Rope(1e4, None)),
        ),
        (
            {"rope_parameters": {SLIDING: {**LINEAR, "rope_theta": 3e3}}},
            (Rope(1e6, None), Rope(3e3, LinearScaling(8.0))),
        ),
    ],
)
def test_layers_with_a_window_have_a_base_of_their_own(
    values: dict[str, Any], ropes: tuple[Rope, Rope]
) -> None:
    assert read_window_ropes(fields(**values), 256) == ropes


def test_what_is_not_served_of_either_is_named() -> None:
    for kind in (FULL, SLIDING):
        with pytest.raises(ModelFolderError, match="'longrope' is not served"):
            read_window_ropes(fields(rope_parameters={kind: {"rope_type": "longrope"}}), 256)
        with pytest.raises(ModelFolderError, match=f"{kind} must be an object"):
            read_window_ropes(fields(rope_parameters={kind: [1]}), 256)


@pytest.mark.parametrize(
    ("parameters", "length"),
    [
        ({}, 256),
        ({"rope_type": "longrope", "factor": 9}, 256),
        ({"rope_type": "dynamic", "factor": 9}, 256),  # longer ones would change what was computed
        ({"rope_type": "linear", "factor": 2.5}, 640),
        ({"rope_type": "linear", "factor": 1e12}, POSITIONS_MAX),
        ({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "yarn", "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 64}, 256),
    ],
)
def test_lengths(parameters: dict[str, Any], length: int) -> None:
    assert stretched_length(fields(rope_scaling=parameters), 256) == length
