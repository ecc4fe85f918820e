"""A folder's tensors as one table: what is found, what is refused and with which words."""

import json
import pathlib

import pytest
import torch

from triolet.engine.errors import ModelFolderError
from triolet.engine.model.weight_folder import (
    INDEX_FILE,
    SINGLE_FILE,
    numerics_files,
    open_weight_folder,
    weight_files,
)

from .tiny_models import safetensors_bytes

A = torch.arange(6, dtype=torch.float32).view(2, 3)


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


def test_a_folder_without_weights_says_what_is_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelFolderError, match="only safetensors"):
        weight_files(tmp_path)
