"""The reader of weight files: what it reads, and every way in which a file may lie."""

import json
import pathlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.errors import ModelFolderError
from triolet.engine.model.loader import read_tensor
from triolet.engine.model.safetensors_reader import HEADER_BYTES_MAX, open_safetensors

from .tiny_models import CPU, safetensors_bytes

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
