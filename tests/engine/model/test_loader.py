"""Weights from folders, one file or shards, and from names alone."""

import json
import pathlib
from typing import Any

import pytest
import torch
import transformers

from triolet.engine.errors import ModelFolderError
from triolet.engine.model.loader import DummyWeights, open_folder_weights
from triolet.engine.model.registry import plan_weights
from triolet.engine.model.weight_folder import (
    INDEX_FILE,
    SINGLE_FILE,
    numerics_files,
    open_weight_folder,
    rename_of,
    text_tensor,
    weight_files,
)
from triolet.engine.model_config.config import ARCHITECTURES, GEMMA3_MULTIMODAL, load_model_config

from .reference import SIZES
from .tiny_models import CPU, safetensors_bytes, write_config

A = torch.arange(6, dtype=torch.float32).view(2, 3)
B = torch.ones(4)


def take(
    folder: pathlib.Path, name: str, shape: tuple[int, ...]
) -> tuple[torch.Tensor, list[float]]:
    fractions: list[float] = []
    with open_folder_weights(
        folder, dtype=torch.float32, device=CPU, progress=fractions.append
    ) as weights:
        return weights.take(name, shape), fractions


def write_shards(folder: pathlib.Path) -> None:
    (folder / "one.safetensors").write_bytes(safetensors_bytes({"a": A}))
    (folder / "two.safetensors").write_bytes(safetensors_bytes({"b": B}))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / INDEX_FILE).write_text(json.dumps(index))


def test_one_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(safetensors_bytes({"a": A, "b": B}))
    weight, fractions = take(tmp_path, "a", (2, 3))
    assert torch.equal(weight, A)
    assert fractions == [0.6]  # 24 of 40 bytes


def test_a_shard_without_its_tensor_is_named(tmp_path: pathlib.Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "two.safetensors").write_bytes(safetensors_bytes({"c": B}))
    with pytest.raises(ModelFolderError, match="the index says so") as caught:
        take(tmp_path, "b", (4,))
    assert caught.value.path.endswith("two.safetensors")


def test_dummy_weights_depend_on_the_name_alone() -> None:
    def matrix(name: str, threads: int) -> torch.Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return DummyWeights(torch.float32, CPU).take(name, (64, 100))
        finally:
            torch.set_num_threads(before)

    assert torch.equal(matrix("x", 1), matrix("x", 2))
    assert not torch.equal(matrix("x", 1), matrix("y", 1))
    assert matrix("x", 1).std() == pytest.approx(0.1, rel=0.1)
    assert DummyWeights(torch.float32, CPU).take("norm", (3,)).tolist() == [1, 1, 1]
    assert DummyWeights(torch.float32, CPU).take("k.bias", (900,)).std() == pytest.approx(
        0.1, rel=0.1
    )


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("vision_tower.vision_model.post_layernorm.weight", None),
        ("model.vision_tower.post_layernorm.weight", None),
        ("multi_modal_projector.mm_soft_emb_norm.weight", None),
        ("audio_tower.norm.weight", "audio_tower.norm.weight"),
    ],
)
def test_tensors_of_the_text_part_are_told_from_the_rest(stored: str, name: str | None) -> None:
    assert text_tensor(stored) == name


def test_only_a_whole_with_a_text_part_has_other_names() -> None:
    for architecture in ARCHITECTURES:
        expected = "model.norm.weight"
        if architecture != GEMMA3_MULTIMODAL:
            expected = "language_model.model.norm.weight"
        assert rename_of(architecture)("language_model.model.norm.weight") == expected


def test_shards_are_one_table(tmp_path: pathlib.Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(safetensors_bytes({"a": A}))
    (tmp_path / "two.safetensors").write_bytes(safetensors_bytes({"b": A.bfloat16()}))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    assert weight_files(tmp_path) == [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    assert numerics_files(tmp_path)[0] == tmp_path / "config.json"
    with open_weight_folder(tmp_path) as folder:
        assert folder.bytes_all == 24 + 12
        shard, entry = folder.find("b", (2, 3))
        assert (shard.path.name, entry.dtype) == ("two.safetensors", "BF16")
        folder.check({"a": (2, 3), "b": (2, 3)})


def test_what_no_model_takes_may_be_left_over_and_nothing_else(tmp_path: pathlib.Path) -> None:
    unused = {"x.rotary_emb.inv_freq": A, "lm_head.weight": A}
    (tmp_path / SINGLE_FILE).write_bytes(safetensors_bytes({"a": A, **unused}))
    with open_weight_folder(tmp_path) as folder:
        folder.check({"a": (2, 3)})
        with pytest.raises(ModelFolderError, match="has a tensor 'a' that the model"):
            folder.check({})


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "../one.safetensors"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": "pytorch_model.bin"}}',
        '{"weight_map": {"a": "\\ud800.safetensors"}}',
    ],
)
def test_a_bad_index_is_refused(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / INDEX_FILE).write_text(content)
    with pytest.raises(ModelFolderError) as caught:
        weight_files(tmp_path)
    assert caught.value.path.endswith(INDEX_FILE)


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
