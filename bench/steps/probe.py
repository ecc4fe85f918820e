"""What this machine can do at most: reading memory, multiplying bf16; for floors of benchmarks.

Each figure is the best of some tries, because neighbours on a machine only ever slow it down; and
memory is read in two ways, because processors differ in which one they are quicker at.
They are measured by `probe.cpp`, compiled here with the flags of the instruction set that the
kernels use. Without kernels or a compiler memory is read by the C library's search for a byte that
is not there, by one thread, and the peak stays unknown.
"""

import ctypes
import math
import mmap
import pathlib
import tempfile
import time
from collections.abc import Callable
from functools import partial

import attrs

from ...engine.kernels.build import CompilerMissing, build, library_name
from ...engine.kernels.library import NativeUnavailable, open_library

# Eight times the cache of the largest processors that we know two cores of.
READ_BYTES = 256 * 2**20
TRIES = 5
# About 10 ms of products on one core of 3 GHz.
TURNS = 2_000_000


@attrs.frozen
class MachineFloor:
    """The most that `threads` threads reach; `multiply_gflop_s` NaN where it cannot be measured."""

    threads: int
    read_gb_s: float
    multiply_gflop_s: float
    isa: str

    def best(self, other: "MachineFloor") -> "MachineFloor":
        """The better of both in each figure, with this one's threads."""
        return attrs.evolve(
            self,
            read_gb_s=max(self.read_gb_s, other.read_gb_s),
            multiply_gflop_s=max(self.multiply_gflop_s, other.multiply_gflop_s),
        )


class Probe:
    """Memory to read, and the functions that read it; close it when it is no longer needed."""

    def __init__(self, *, read_bytes: int = READ_BYTES) -> None:
        self._memory = mmap.mmap(-1, read_bytes)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._buffer = (ctypes.c_char * read_bytes).from_buffer(self._memory)
        ctypes.memset(self._buffer, 1, read_bytes)  # pages of zeros would all be one page
        self._functions: ctypes.CDLL | None = None
        self.isa = ""
        try:
            self.isa = open_library().isa
            self._functions = _compile(self.isa)
        except (NativeUnavailable, CompilerMissing):
            return
        self._functions.triolet_probe_read.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_int,
        )
        self._functions.triolet_probe_read.restype = ctypes.c_int64
        self._functions.triolet_probe_products.argtypes = (ctypes.c_int64, ctypes.c_int)
        self._functions.triolet_probe_products.restype = ctypes.c_double

    def close(self) -> None:
        """Give the memory back."""
        del self._buffer
        self._memory.close()

    def measure(self, threads: int, *, tries: int = TRIES, turns: int = TURNS) -> MachineFloor:
        """Best figures of some tries with so many threads."""
        read_s = min(
            _best(tries, partial(self._read, threads, several=several)) for several in (False, True)
        )
        operations = 0.0

        def multiply() -> None:
            nonlocal operations
            assert self._functions is not None
            operations = self._functions.triolet_probe_products(turns, threads)

        multiply_s = math.nan if self._functions is None else _best(tries, multiply)
        return MachineFloor(
            threads=threads,
            read_gb_s=len(self._memory) / read_s / 1e9,
            multiply_gflop_s=operations / multiply_s / 1e9,
            isa=self.isa,
        )

    def _read(self, threads: int, *, several: bool) -> None:
        size = len(self._memory)
        if self._functions is not None:
            self._functions.triolet_probe_read(self._buffer, size, threads, several)
        else:
            self._memory.find(b"\0")


def _compile(isa: str) -> ctypes.CDLL:
    """The functions of `probe.cpp`. Raises `CompilerMissing`."""
    with tempfile.TemporaryDirectory(prefix="triolet-probe-") as target:
        path = pathlib.Path(target)
        build(path, (isa,), folder=pathlib.Path(__file__).parent)
        return ctypes.CDLL(str(path / library_name(isa)))


def _best(tries: int, work: Callable[[], object]) -> float:
    """Seconds of the quickest try, after one to warm up."""
    work()
    best = math.inf
    for _ in range(tries):
        began_s = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began_s)
    return best
