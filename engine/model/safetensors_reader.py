"""Reader of weight files in safetensors format, which believes nothing a file says of itself.

A file is eight bytes of header length, a JSON header, then raw little-endian values. Every name,
dtype, shape and offset of the header is checked against the others and against the length of the
file before any value is read; no field is executed, looked up or unpickled. Values are mapped, not
read: what is not asked for costs nothing. No torch here.
"""

import json
import math
import mmap
import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeGuard

import attrs

from ...nurseries.processes.boot import SHORTAGES
from ..errors import ModelFolderError

LENGTH_BYTES = 8
# The format's own limit, from its reference implementation.
HEADER_BYTES_MAX = 100_000_000
# torch's practical limit; no weight has more than five.
DIMENSIONS_MAX = 8
# Bytes of one item of each format.
ITEM_BYTES = MappingProxyType(
    {
        "F64": 8, "F32": 4, "F16": 2, "BF16": 2,
        "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    }
)  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")


@attrs.frozen
class TensorEntry:
    """Tensor of the header. Its values are `[begin, end)`, counted from the header's end."""

    name: str
    dtype: str  # as the format writes it: a key of `ITEM_BYTES`
    shape: tuple[int, ...]
    begin: int
    end: int


@attrs.frozen(eq=False)
class SafetensorsFile:
    """Open file. `entries` is by name, in the order of the header."""

    path: pathlib.Path
    entries: dict[str, TensorEntry]
    _values: memoryview

    def values(self, entry: TensorEntry) -> memoryview:
        """The mapped values of one of `entries`, or of a part of one; gone with the file.

        Not necessarily aligned; writable, and never written.
        """
        return self._values[entry.begin : entry.end]


@contextmanager
def open_safetensors(path: pathlib.Path) -> Iterator[SafetensorsFile]:
    """Map `path` and check its header. Nothing of it outlives the block.

    Raises `ModelFolderError`, naming the file and the fault, and `OSError` of `SHORTAGES`.
    """
    try:
        if path.exists() and not path.is_file():
            raise ModelFolderError(path, "is not a file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelFolderError(path, "is empty")
            # Private and writable, because readers warn about read-only buffers; nothing writes.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        raise ModelFolderError(path, f"cannot be read: {error.strerror}") from error
    with mapped, memoryview(mapped) as content:
        entries, values_begin = _read_header(path, content)
        with content[values_begin:] as values:
            yield SafetensorsFile(path, entries, values)


def _read_header(path: pathlib.Path, content: memoryview) -> tuple[dict[str, TensorEntry], int]:
    if len(content) < LENGTH_BYTES:
        raise ModelFolderError(path, f"is truncated: {len(content)} bytes, no header")
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    begin = LENGTH_BYTES + length
    if length > HEADER_BYTES_MAX:
        raise ModelFolderError(path, f"claims a header of {length} bytes; it is no safetensors")
    if begin > len(content):
        raise ModelFolderError(
            path, f"is truncated: header of {length} bytes in a file of {len(content)}"
        )
    try:
        header = json.loads(bytes(content[LENGTH_BYTES:begin]), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(path, f"has a header that is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelFolderError(path, "has a header that is not an object")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value) for name, value in header.items()}
    _check_cover(path, list(entries.values()), len(content) - begin)
    return entries, begin


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entry(path: pathlib.Path, name: str, value: object) -> TensorEntry:
    def fault(reason: str) -> ModelFolderError:
        return ModelFolderError(path, f"tensor {name!r:.200}: {reason}")

    if not isinstance(value, dict):
        raise fault("its entry is not an object")
    dtype, shape = value.get("dtype"), value.get("shape")
    offsets = value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise fault(f"dtype {dtype!r:.40} is none of {', '.join(ITEM_BYTES)}")
    if not _is_list_of_sizes(shape) or len(shape) > DIMENSIONS_MAX:
        raise fault(f"shape {shape!r:.80} is no list of sizes")
    if not _is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fault(f"data_offsets {offsets!r:.80} are no range")
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != needed:
        raise fault(f"{dtype} of shape {shape} needs {needed} bytes, has {offsets}")
    return TensorEntry(name, dtype, tuple(shape), offsets[0], offsets[1])


def _is_list_of_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size < 2**48 for size in value
    )


def _check_cover(path: pathlib.Path, entries: list[TensorEntry], values_bytes: int) -> None:
    """The tensors fill the values exactly, as the format demands: no overlap, hole or rest."""
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin < position:
            raise ModelFolderError(path, f"tensor {entry.name!r:.200} overlaps the one before")
        if entry.begin > position:
            raise ModelFolderError(path, f"has a hole before tensor {entry.name!r:.200}")
        position = entry.end
    if position > values_bytes:
        raise ModelFolderError(
            path, f"is truncated: tensors end at {position}, values at {values_bytes} bytes"
        )
    if position < values_bytes:
        raise ModelFolderError(path, f"has {values_bytes - position} bytes after its last tensor")
