"""Model folders are anybody's: what is read of config.json, and how a bad one is refused."""

import json
import pathlib
from typing import Any

import pytest

from triolet.engine.errors import ModelFolderError
from triolet.engine.model_config import (
    CONFIG_BYTES_MAX,
    Llama3Scaling,
    load_model_config,
    load_model_limits,
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
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
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
    assert (config.norm_epsilon, config.rope_theta, config.rope_scaling) == (1e-6, 10_000.0, None)
    assert (config.tied_embeddings, config.dtype) == (False, "float32")
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": LLAMA3, "rope_theta": 5e5},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    ],
)
def test_rope_of_old_and_new_folders(tmp_path: pathlib.Path, changes: dict[str, Any]) -> None:
    config = load_model_config(write(tmp_path, **changes))
    assert config.rope_theta == 5e5
    assert config.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_dtype_of_old_and_new_folders(tmp_path: pathlib.Path, name: str) -> None:
    assert load_model_config(write(tmp_path, **{name: "bfloat16"})).dtype == "bfloat16"


def test_generation_config_decides_about_end_tokens(tmp_path: pathlib.Path) -> None:
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    config = load_model_config(tmp_path)
    assert config.eos_token_ids == (7, 9)
    assert config.bos_token_id == 1


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
        ("rope_scaling", {"rope_type": "yarn"}),
        ("rope_scaling", {**LLAMA3, "low_freq_factor": 4.0}),
        ("rope_scaling", []),
        ("tie_word_embeddings", "yes"),
        ("dtype", "float8"),
        ("eos_token_id", "</s>"),
        ("eos_token_id", [1, -2]),
        ("architectures", ["GPT2LMHeadModel"]),
        ("architectures", None),
        ("attention_bias", True),
        ("mlp_bias", True),
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
    known = {"eos_token_id": ("eos_token_id",), "rope_scaling": ("rope", "low_freq")}
    words = known.get(field, (field.removesuffix("_key_value_heads"), "num_attention_heads"))
    assert any(word in caught.value.reason for word in words)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_object_is_refused(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelFolderError, match="JSON"):
        load_model_config(tmp_path)


def test_a_missing_and_a_huge_file_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelFolderError, match="No such file"):
        load_model_limits(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (CONFIG_BYTES_MAX + 1))
    with pytest.raises(ModelFolderError, match="larger"):
        load_model_limits(tmp_path)
