"""Weights from folders, one file or shards, every way in which a file may lie, and dummies."""

from __future__ import annotations

import json
import pathlib
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.errors import ModelFolderError
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.model.loader import DummyWeights, FolderWeights, read_tensor
from triolet.engine.model.safetensors_reader import HEADER_BYTES_MAX, open_safetensors
from triolet.engine.model.weight_folder import (
    INDEX_FILE,
    SINGLE_FILE,
    numerics_files,
    open_weight_folder,
    rename_of,
    text_tensor,
    weight_files,
)
from triolet.engine.model_config.config import ARCHITECTURES, GEMMA3_MULTIMODAL

from ...shortages import no_descriptors
from .tiny_models import CPU, safetensors_bytes

A = torch.arange(6, dtype=torch.float32).view(2, 3)
B = torch.ones(4)


def take(
    folder: pathlib.Path, name: str, shape: tuple[int, ...]
) -> tuple[torch.Tensor, list[float]]:
    fractions: list[float] = []
    with open_weight_folder(folder) as files:
        weights = FolderWeights(files, torch.float32, CPU, fractions.append)
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


TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0),
    "empty": torch.empty(0, 4),
}


def file_of(header: object, values: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + values


def entry(begin: int, end: int, **changes: Any) -> dict[str, Any]:
    shape = [(end - begin) // 4]
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end], **changes}


def test_reads_what_the_reference_writer_wrote(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file(TENSORS, path, metadata={"format": "pt"})
    with open_safetensors(path) as file:
        assert set(file.entries) == set(TENSORS)
        for name, tensor in TENSORS.items():
            assert torch.equal(
                read_tensor(file, file.entries[name], dtype=tensor.dtype, device=CPU), tensor
            )


def test_casts_and_outlives_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes(TENSORS))
    with open_safetensors(path) as file:
        b = read_tensor(file, file.entries["b"], dtype=torch.float32, device=CPU)
        a = read_tensor(file, file.entries["a"], dtype=torch.float32, device=CPU)
    a += 1  # its own memory: the file keeps its contents
    assert b.tolist() == [1.5, -2.25]
    assert a.data_ptr() % 64 == 0
    assert path.read_bytes() == safetensors_bytes(TENSORS)


def test_values_at_odd_offsets_are_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.safetensors"
    header = {
        "x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "y": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
    }
    path.write_bytes(file_of(header, b"\x07" + struct.pack("<f", 2.5)))
    with open_safetensors(path) as file:
        y = read_tensor(file, file.entries["y"], dtype=torch.float32, device=CPU)
        assert y.tolist() == [2.5]


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty"),
    "no header": (lambda: b"\x01\x00", "truncated"),
    "header longer than the file": (lambda: struct.pack("<Q", 100) + b"{}", "truncated"),
    "header of an absurd length": (lambda: struct.pack("<Q", HEADER_BYTES_MAX + 1), "claims"),
    "header that is no JSON": (lambda: file_of(b"{nope"), "not JSON"),
    "header of brackets": (lambda: file_of(b"[" * 100_000), "not JSON"),
    "header that is a list": (lambda: file_of([]), "not an object"),
    "a name twice": (lambda: file_of(b'{"a": {}, "a": {}}'), "twice"),
    "entry that is no object": (lambda: file_of({"a": 1}), "not an object"),
    "unknown dtype": (lambda: file_of({"a": entry(0, 4, dtype="F8")}, b"0000"), "dtype"),
    "dtype that is a list": (lambda: file_of({"a": entry(0, 4, dtype=[])}, b"0000"), "dtype"),
    "negative size": (lambda: file_of({"a": entry(0, 4, shape=[-1])}, b"0000"), "shape"),
    "size that is true": (lambda: file_of({"a": entry(0, 4, shape=[True])}, b"0000"), "shape"),
    "no shape": (lambda: file_of({"a": entry(0, 4, shape=None)}, b"0000"), "shape"),
    "too many dimensions": (lambda: file_of({"a": entry(0, 4, shape=[1] * 9)}, b"0000"), "shape"),
    "offsets backwards": (lambda: file_of({"a": entry(0, 4, data_offsets=[4, 0])}), "offsets"),
    "one offset": (lambda: file_of({"a": entry(0, 4, data_offsets=[4])}), "offsets"),
    "fewer bytes than the shape": (
        lambda: file_of({"a": entry(0, 4, shape=[2])}, b"0000"),
        "needs",
    ),
    "values cut off": (lambda: file_of({"a": entry(0, 8)}, b"0000"), "truncated"),
    "overlap": (lambda: file_of({"a": entry(0, 8), "b": entry(4, 12)}, b"0" * 12), "overlaps"),
    "hole": (lambda: file_of({"a": entry(0, 4), "b": entry(8, 12)}, b"0" * 12), "hole"),
    "rest": (lambda: file_of({"a": entry(0, 4)}, b"0" * 12), "after its last tensor"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_a_file_that_lies_is_refused_by_name(tmp_path: pathlib.Path, case: str) -> None:
    make, reason = BAD[case]
    path = tmp_path / "m.safetensors"
    path.write_bytes(make())
    with pytest.raises(ModelFolderError, match=reason) as caught, open_safetensors(path):
        pass
    assert caught.value.path == str(path)


def test_a_missing_file_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(ModelFolderError, match="No such file"),
        open_safetensors(tmp_path / "gone.safetensors"),
    ):
        pass


@given(data=st.data())
def test_any_damage_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(safetensors_bytes(TENSORS))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(content)
    try:
        with open_safetensors(path) as file:
            for name, found in file.entries.items():
                assert (
                    read_tensor(file, file.entries[name], dtype=torch.float32, device=CPU).shape
                    == found.shape
                )
    except ModelFolderError:
        pass


def test_the_folder_holds_a_whole_model() -> None:
    folder = bundled_model_folder()
    for name in (
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    ):
        assert (folder / name).is_file(), name
    assert (folder / "model.safetensors").stat().st_size <= 8_000_000


def test_the_path_costs_no_torch() -> None:
    code = "import sys, triolet.engine.model.bundled as b; b.bundled_model_folder()\n"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_want_of_descriptors_does_not_make_a_file_broken(tmp_path: pathlib.Path) -> None:
    path = tmp_path / SINGLE_FILE
    path.write_bytes(b"whatever it is")
    with (
        no_descriptors(),
        pytest.raises(OSError, match="Too many open files"),
        open_safetensors(path),
    ):
        pass
