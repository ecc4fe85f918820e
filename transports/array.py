"""Array of numbers in a message: a flat buffer that travels beside it without being copied.

Sans-IO: plain data. The codec puts a large `Array` into a frame of its own and decodes it as a view
of the received frame; a small one goes inline. No torch and no numpy here: they read and fill
`data` by the buffer protocol (`torch.frombuffer`, as bytes first where bfloat16 is meant).
"""

import math
from types import MappingProxyType

Frame = bytes | bytearray | memoryview

# Bytes of one item by the names that torch and numpy share; closed, so that no name from the wire
# is ever looked up anywhere else.
ITEM_BYTES = MappingProxyType(
    {
        "bool": 1,
        "uint8": 1,
        "int8": 1,
        "int16": 2,
        "float16": 2,
        "bfloat16": 2,
        "int32": 4,
        "float32": 4,
        "int64": 8,
        "float64": 8,
    }
)
# torch goes no further in practice; bounds what a shape from the wire can make us multiply.
DIMENSIONS_MAX = 8


class Array:
    """`data` holds the items in row-major order, little-endian, as flat bytes.

    The sender's buffer is not copied: it must stay unchanged until the frames are sent. A received
    one may be a read-only view of its frame: it lives as long as the view does, clone it to write.

    Raises `ValueError` if `dtype` is unknown, the buffer is not contiguous, or the sizes differ.
    """

    # Not an attrs class: msgspec would encode its fields, where the codec must see it whole.
    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: Frame) -> None:
        if dtype not in ITEM_BYTES:
            raise ValueError(f"dtype {dtype[:40]!r} is none of {', '.join(ITEM_BYTES)}")
        if len(shape) > DIMENSIONS_MAX or any(length < 0 for length in shape):
            raise ValueError(f"shape {shape[:DIMENSIONS_MAX]} is not one of an array")
        view = memoryview(data)
        if not view.c_contiguous:
            raise ValueError("the buffer is not contiguous")
        flat = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        expected = math.prod(shape) * ITEM_BYTES[dtype]
        if flat.nbytes != expected:
            raise ValueError(f"{dtype} of shape {shape} has {expected} bytes, not {flat.nbytes}")
        self.dtype = dtype
        self.shape = shape
        self.data = flat

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        mine = (self.dtype, self.shape)
        return mine == (other.dtype, other.shape) and self.data == other.data

    __hash__ = None  # type: ignore[assignment]  # it views a buffer that may change

    def __repr__(self) -> str:
        return f"Array({self.dtype!r}, {self.shape}, {self.data.nbytes} bytes)"
