"""The kernels' functions, structures and memory as Python sees them: `model.h`, field by field.

Pointers are addresses of arrays that the caller keeps alive; weights, keys and values lie in mapped
memory, in huge pages where the operating system gives them.
"""

import mmap
import os
from contextlib import suppress
from ctypes import CDLL, POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from types import MappingProxyType
from typing import Any

import attrs
import numpy
from numpy.typing import NDArray

from .library import NativeLibrary
from .sampler import SampleCall, ScoreCall

Bytes = NDArray[numpy.uint8]
# A huge page of x86-64; kernels walk hundreds of megabytes, and a page of 4 KiB costs a look-up.
HUGE_PAGE_BYTES = 2 * 2**20
FORMATS = MappingProxyType({"BF16": 0, "F32": 1, "F16": 2, "F64": 3})
# Refusals of `triolet_forward` before it touches anything, by its return code.
FAULTS = MappingProxyType(
    {
        1: "a position is out of range",
        2: "a block table is too short or names a block that there is not",
        3: "the counts of tokens do not add up",
        4: "a token id is out of the vocabulary",
        5: "logits are wanted of a token that is not in the step",
    }
)


@attrs.frozen
class NativeFault(Exception):
    """The kernels refused a step as inconsistent, and computed nothing."""

    code: int

    def __str__(self) -> str:
        return FAULTS.get(self.code, f"code {self.code}")


# The parts of a layer's weights, in the order of `model.h`.
LAYER_PARTS = (
    "query_key_value",
    "attention_output",
    "gate_up",
    "down",
    "query_key_value_bias",
    "attention_output_bias",
    "gate_up_bias",
    "down_bias",
    "attention_norm",
    "mlp_norm",
    "query_norm",
    "key_norm",
    "attention_end_norm",
    "mlp_end_norm",
    "router",
    "experts_gate_up",
    "experts_down",
)


class LayerPointers(Structure):
    """Layer, `LayerWeights` of `model.h`; null where a family has no such part."""

    _fields_ = (
        *((name, c_void_p) for name in LAYER_PARTS),
        ("rotation", c_void_p),
        ("window", c_int64),
    )


class ModelWeights(Structure):
    """A whole model and its cache."""

    _fields_ = (
        ("hidden", c_int32),
        ("hidden_padded", c_int32),
        ("layers", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_size", c_int32),
        ("head_padded", c_int32),
        ("intermediate_padded", c_int32),
        ("vocab", c_int32),
        ("vocab_padded", c_int32),
        ("positions", c_int32),
        ("blocks", c_int32),
        ("experts", c_int32),
        ("experts_padded", c_int32),
        ("experts_chosen", c_int32),
        ("experts_normalized", c_int32),
        ("expert_intermediate_padded", c_int32),
        ("gelu", c_int32),
        ("norm_epsilon", c_float),
        ("attention_scale", c_float),
        ("embedding_scale", c_float),
        ("logit_softcap", c_float),
        ("layer", POINTER(LayerPointers)),
        ("embedding", c_void_p),
        ("head", c_void_p),
        ("norm", c_void_p),
        ("kv", c_void_p),
    )


class StepBatch(Structure):
    """Step, as `StepBatch` of `model.h`."""

    _fields_ = (
        ("tokens", c_int32),
        ("sequences", c_int32),
        ("logit_rows", c_int32),
        ("table_stride", c_int32),
        ("keeps_all", c_int32),
        ("token_ids", c_void_p),
        ("rows", c_void_p),
        ("begins", c_void_p),
        ("counts", c_void_p),
        ("block_tables", c_void_p),
        ("logit_tokens", c_void_p),
        ("embeddings", c_void_p),
    )


def declare_functions(library: NativeLibrary) -> CDLL:
    """The library's functions, with the types of `model.h` and `sampler.h` declared to ctypes.

    All block, and let other Python threads run meanwhile. A pass that is refused raises
    `NativeFault`, and pages that cannot be had `MemoryError`.
    """
    functions = library.functions
    array, size, number = c_void_p, c_int64, c_int32
    forward = (POINTER(ModelWeights), POINTER(StepBatch), array, array, number)
    sample = (POINTER(SampleCall), array)
    for function, result, arguments in (
        (functions.triolet_pack, None, (
            array, size, size, size, array, array, array, number, size, number
        )),
        (functions.triolet_copy_rows, None, (array, size, array, number, size, size, number)),
        (functions.triolet_to_floats, None, (array, array, number, size)),
        (functions.triolet_populate, number, (array, size, number)),
        (functions.triolet_scratch_bytes, size, (POINTER(ModelWeights), size, size, number)),
        (functions.triolet_forward, number, forward),
        (functions.triolet_logits, number, forward),
        (functions.triolet_step, number, (*forward, *sample, POINTER(size))),
        (functions.triolet_sample_scratch, size, (size, number)),
        (functions.triolet_sample, None, sample),
        (functions.triolet_score, None, (POINTER(ScoreCall), array)),
        (functions.triolet_noise, None, (array, array, size)),
    ):  # fmt: skip
        function.restype, function.argtypes = result, arguments
    for function in (functions.triolet_forward, functions.triolet_logits, functions.triolet_step):
        function.errcheck = _raise_fault
    functions.triolet_populate.errcheck = _raise_no_pages
    return functions


def _raise_fault(code: Any, _function: Any, _arguments: Any) -> Any:
    if code:
        raise NativeFault(code)


def _raise_no_pages(code: Any, _function: Any, arguments: Any) -> Any:
    if code:
        raise MemoryError(f"no pages for {arguments[1]} bytes: {os.strerror(code)}")


def take_memory(size: int) -> Bytes:
    """`size` zero bytes that begin at a huge page; freed when the last view of them is gone.

    Untouched pages cost nothing. Raises `MemoryError` or `OSError` where there is no room.
    """
    mapped = mmap.mmap(-1, max(size, 1) + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE)
    with suppress(OSError):  # a kernel without huge pages is as right and slower
        mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = numpy.frombuffer(mapped, dtype=numpy.uint8)
    begin = -address_of(whole) % HUGE_PAGE_BYTES
    return whole[begin : begin + size]


def address_of(array: NDArray[numpy.generic]) -> int:
    """Address of the array's first item."""
    return int(array.__array_interface__["data"][0])
