"""Models by the name of their architecture, from weights or from a seed."""

import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.engine.errors import ModelFolderError
from triolet.engine.model.decoder import Decoder
from triolet.engine.model.registry import compute_dtype, load_model, plan_weights
from triolet.engine.model.weight_folder import INDEX_FILE, SINGLE_FILE
from triolet.engine.model_config.config import (
    ARCHITECTURES,
    GEMMA3,
    GEMMA3_MULTIMODAL,
    QWEN3_MOE,
    load_model_config,
)
from triolet.engine.model_config.folder import CONFIG_FILE

from .tiny_models import CPU, TINY, safetensors_bytes, write_config, write_model


def load(folder: pathlib.Path) -> Decoder:
    config = load_model_config(folder)
    return load_model(
        folder, config, load_format="auto", bitwise=True, positions=8, device=CPU,
        progress=lambda fraction: None,
    )  # fmt: skip


def test_dtype_of_both_modes(tmp_path: pathlib.Path) -> None:
    config = load_model_config(write_config(tmp_path, dtype="bfloat16"))
    gpu = torch.device("cuda")
    assert compute_dtype(config, CPU, bitwise=True) is torch.float32
    assert compute_dtype(config, CPU, bitwise=False) is torch.bfloat16
    assert compute_dtype(config, gpu, bitwise=True) is torch.bfloat16


NONE = {"sliding_window": None}
# Small ones: the format's default is of the big model.
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
WINDOWS: dict[str, dict[str, Any]] = {
    GEMMA3: {"sliding_window": 20},
    GEMMA3_MULTIMODAL: {"text_config": {**TINY, "sliding_window": 20}},
    QWEN3_MOE: {**NONE, **EXPERTS},
}


def change_tensors(
    folder: pathlib.Path, change: Callable[[dict[str, torch.Tensor]], object]
) -> None:
    tensors = safetensors.torch.load_file(folder / SINGLE_FILE)
    change(tensors)
    (folder / SINGLE_FILE).write_bytes(safetensors_bytes(tensors))


def replace_by_folder(folder: pathlib.Path) -> None:
    (folder / SINGLE_FILE).unlink()
    (folder / SINGLE_FILE).mkdir()


NORM = "model.norm.weight"
BIAS = "model.layers.1.self_attn.q_proj.bias"
INDEX = {"weight_map": {NORM: "../model.safetensors"}}
BREAKS: dict[str, tuple[Callable[[pathlib.Path], object], str]] = {
    "no config": (
        lambda f: (f / CONFIG_FILE).unlink(),
        "is not a model folder: it has no config.json",
    ),
    "no weights": (lambda f: (f / SINGLE_FILE).unlink(), "has neither model.safetensors nor"),
    "weights that are a folder": (
        replace_by_folder,
        "model.safetensors: is not a file",
    ),
    "truncated": (
        lambda f: os.truncate(f / SINGLE_FILE, (f / SINGLE_FILE).stat().st_size - 1),
        "model.safetensors: is truncated",
    ),
    "a missing tensor": (
        lambda f: change_tensors(f, lambda tensors: tensors.pop(NORM)),
        "has no tensor model.norm.weight",
    ),
    "another shape": (
        lambda f: change_tensors(f, lambda tensors: tensors.update({NORM: torch.ones(63)})),
        r"model.norm.weight has shape \(63,\); the config implies \(64,\)",
    ),
    "another type": (
        lambda f: change_tensors(
            f, lambda tensors: tensors.update({NORM: torch.ones(64, dtype=torch.int64)})
        ),
        "model.norm.weight is I64, no float",
    ),
    "a tensor that is not asked for": (
        lambda f: change_tensors(f, lambda tensors: tensors.update({BIAS: torch.ones(64)})),
        "has a tensor 'model.layers.1.self_attn.q_proj.bias' that the model of config.json has no",
    ),
    "more layers than the config says": (
        lambda f: write_config(f, num_hidden_layers=1),
        "has a tensor 'model.layers.1",
    ),
    "fewer layers than the config says": (
        lambda f: write_config(f, num_hidden_layers=64),
        "has no tensor model.layers.2",
    ),
    "an index that leads out": (
        lambda f: (
            (f / SINGLE_FILE).rename(f / "x") and (f / INDEX_FILE).write_text(json.dumps(INDEX))
        ),
        "no .safetensors file of the folder",
    ),
}


@pytest.mark.parametrize("case", list(BREAKS))
def test_a_broken_folder_is_refused_by_name(tmp_path: pathlib.Path, case: str) -> None:
    break_it, reason = BREAKS[case]
    break_it(write_model(tmp_path))
    with pytest.raises(ModelFolderError, match=reason) as caught:
        load(tmp_path)
    assert str(tmp_path) in caught.value.path
    assert "choose another model" in str(caught.value)


def test_a_missing_shard_is_named(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path)
    (tmp_path / SINGLE_FILE).rename(tmp_path / "one.safetensors")
    names = plan_weights(load_model_config(tmp_path))
    shards = dict.fromkeys(names, "one.safetensors")
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": shards}))
    load(tmp_path)
    (tmp_path / INDEX_FILE).write_text(
        json.dumps({"weight_map": {**shards, NORM: "two.safetensors"}})
    )
    with pytest.raises(ModelFolderError, match=r"two\.safetensors: cannot be read: No such file"):
        load(tmp_path)


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, -1, 2**20, 10**12, 1.5, math.nan, "", "silu", [], [7], {}, True]
)

ODD_FIELDS = (
    "sliding_window",
    "rope_scaling",
    "rope_parameters",
    "text_config",
    "layer_types",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "mlp_only_layers",
    "decoder_sparse_step",
    "query_pre_attn_scalar",
    "final_logit_softcapping",
    "_sliding_window_pattern",
)


@pytest.mark.slow
@settings(max_examples=80)
@given(
    architecture=st.sampled_from(list(ARCHITECTURES)),
    changes=st.dictionaries(st.sampled_from([*TINY, *ODD_FIELDS]), ODD),
    damage=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=3),
)
def test_any_folder_is_a_model_or_a_documented_error(
    tmp_path_factory: pytest.TempPathFactory,
    architecture: str,
    changes: dict[str, Any],
    damage: list[tuple[int, int]],
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    own = {"architectures": [architecture], **WINDOWS.get(architecture, NONE)}
    write_model(folder, **own)
    write_config(folder, **{**own, **changes})
    content = bytearray((folder / SINGLE_FILE).read_bytes())
    for place, value in damage:
        content[place] = value
    (folder / SINGLE_FILE).write_bytes(content)
    try:
        load(folder)
    except ModelFolderError as error:
        str(error).encode()
