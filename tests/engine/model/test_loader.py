"""Weights from folders, one file or shards, and from names alone."""

import json
import pathlib

import pytest
import torch

from triolet.engine.errors import ModelFolderError
from triolet.engine.model.loader import DummyWeights, open_folder_weights
from triolet.engine.model.weight_folder import INDEX_FILE, SINGLE_FILE

from .tiny_models import CPU, safetensors_bytes

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


def test_shards(tmp_path: pathlib.Path) -> None:
    write_shards(tmp_path)
    assert torch.equal(take(tmp_path, "a", (2, 3))[0], A)
    assert torch.equal(take(tmp_path, "b", (4,))[0], B)


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [("c", (1,), "no tensor c"), ("a", (3, 2), r"shape \(2, 3\); the config implies \(3, 2\)")],
)
def test_what_does_not_fit_the_config_is_named(
    tmp_path: pathlib.Path, name: str, shape: tuple[int, ...], reason: str
) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(safetensors_bytes({"a": A}))
    with pytest.raises(ModelFolderError, match=reason):
        take(tmp_path, name, shape)


def test_integers_are_no_weights(tmp_path: pathlib.Path) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(safetensors_bytes({"a": torch.ones(2, dtype=torch.int64)}))
    with pytest.raises(ModelFolderError, match="no float"):
        take(tmp_path, "a", (2,))


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
