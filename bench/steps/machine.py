"""The machine beside figures: processor, cores, noise, and its floor of memory and products.

Neighbours on a machine change every figure, and afterwards they cannot be seen; so each run of a
benchmark notes the load and how much CPU time a plain loop took. The floor is the best of some
tries, because neighbours only ever slow it down; memory is read in two ways, because processors
differ in which one they are quicker at. `probe.cpp` measures it, compiled here with the flags of
the instruction set that the kernels use. Without kernels or a compiler memory is read by the C
library's search for a byte that is not there, by one thread, and the peak stays unknown.
"""

import ctypes
import math
import mmap
import os
import platform
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs

from ... import __version__
from ...engine.host import cores
from ...engine.kernels.build import CompilerMissing, build, library_name
from ...engine.kernels.library import NativeUnavailable, open_library

# About 20 ms; long enough that a tick of the clock does not matter.
_TURNS = 1_000_000
# More processes that want to run than this, apart from ours, make figures of no use.
QUIET_LOAD = 0.5


@attrs.frozen(kw_only=True)
class Machine:
    """Machine at one moment. `load` is how many processes wanted to run in the last minute."""

    processor: str
    cores: int
    load: float
    # CPU time of one turn of an empty loop, nanoseconds.
    turn_ns: float
    python: str
    triolet: str

    @property
    def is_quiet(self) -> bool:
        """Whether the figures can be believed."""
        return self.load < QUIET_LOAD

    def describe(self) -> str:
        """Line below a table."""
        noise = "quiet" if self.is_quiet else f"NOT quiet: load {self.load:.1f} before the run"
        return (
            f"{self.processor}, {self.cores} cores, {noise};"
            f" an empty loop took {self.turn_ns:.0f} ns a turn"
        )


def look_at_machine() -> Machine:
    """Look at it now; takes about 20 ms."""
    began_s = time.process_time()
    for _ in range(_TURNS):
        pass
    return Machine(
        processor=_processor(),
        cores=cores(),
        load=os.getloadavg()[0],
        turn_ns=(time.process_time() - began_s) / _TURNS * 1e9,
        python=platform.python_version(),
        triolet=__version__,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


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
            self._functions = _compile_probe(self.isa)
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


def _compile_probe(isa: str) -> ctypes.CDLL:
    """The functions of `probe.cpp`. Raises `CompilerMissing`."""
    with tempfile.TemporaryDirectory(prefix="triolet-probe-") as target:
        path = Path(target)
        build(path, (isa,), folder=Path(__file__).parent)
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
