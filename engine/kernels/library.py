"""The shared object that fits this processor: chosen, checked and opened.

The quickest instruction set is chosen of those that processor, environment and settings allow.
`TRIOLET_ISA` lowers the choice (for tests, and to compare); a setting pins it, so that unlike hosts
compute the same bits. An object that is missing, stale or broken is an error with its reason, for
the caller to go on without.
"""

import ctypes
import os
import pathlib
from functools import cache
from types import MappingProxyType

import attrs

from ..errors import InvalidParameter
from ..host import CPUINFO, first_processor
from .build import FOLDER, ISA_FLAGS, library_name, source_hash

ISA_VARIABLE = "TRIOLET_ISA"
REBUILD = "python -m triolet.engine.kernels.build"
# Features that the kernel must list for code of each set; it lists what it also saves.
ISA_FEATURES = MappingProxyType(
    {
        "avx512bf16": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512_bf16"},
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"},
        "avx2": {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"},
        "plain": set[str](),
    }
)

# Whose processors multiply bf16 pairs at half the rate of floats (Emerald Rapids: 86 GFLOP/s a
# core, floats 179; AMD's at double the rate). Decided by the name, not by a measurement: a worker
# that is restarted must compute the same bits.
SLOW_PAIRS_VENDOR = "GenuineIntel"
# How often threads that wait for each other look before they sleep. By default they spin for 3 ms,
# also while the thread that they wait for has no processor: beside one busy process a step of two
# threads took eight times as long. Read once, when the library of threads is loaded.
SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "2000"
# How the loader of objects spells `boot.SHORTAGES`; it tells no number.
_SHORTAGES = ("Too many open files", "annot allocate memory", "failed to map segment")


class NativeUnavailable(Exception):
    """The kernels cannot be used here; says why and what helps."""


@attrs.frozen(eq=False)
class NativeLibrary:
    """An open shared object. Functions get their argument types from their callers."""

    isa: str
    source_hash: str
    functions: ctypes.CDLL


def machine_isas(cpuinfo: pathlib.Path = CPUINFO) -> tuple[str, ...]:
    """The instruction sets that this processor can run, the quickest first."""
    said = first_processor(cpuinfo)  # nothing: only what every x86-64 has is certain
    features = set(said.get("flags", "").split())
    if "avx512f" in features:  # some kernels leave out what every such processor has
        features |= {"abm", "movbe"}
    isas = [isa for isa in ISA_FLAGS if ISA_FEATURES[isa] <= features]
    if isas[0] == "avx512bf16" and said.get("vendor_id") == SLOW_PAIRS_VENDOR:
        isas[:2] = "avx512", "avx512bf16"
    return tuple(isas)


def choose_isa(pinned: str = "", *, isas: tuple[str, ...] | None = None) -> str:
    """`pinned`, or the first of `isas` (this machine's) that is not above `TRIOLET_ISA`.

    Raises `InvalidParameter` for a name that there is not, or that this machine cannot run.
    """
    isas = machine_isas() if isas is None else isas
    lowered = os.environ.get(ISA_VARIABLE, "")
    for field, name in ((ISA_VARIABLE, lowered), ("isa", pinned)):
        if name and name not in ISA_FLAGS:
            raise InvalidParameter(field, f"must be one of {', '.join(ISA_FLAGS)}, not {name!r}")
    order = isas if lowered in isas else tuple(ISA_FLAGS)
    bound = order.index(lowered) if lowered else 0
    allowed = [isa for isa in isas if order.index(isa) >= bound]
    if pinned == lowered:  # the commands read the variable as a setting, too; it lowers there, too
        return allowed[0]
    if pinned and pinned not in allowed:
        raise InvalidParameter("isa", f"{pinned} is not among what can run here: {allowed}")
    return pinned or allowed[0]


def open_library(pinned: str = "", *, folder: pathlib.Path | None = None) -> NativeLibrary:
    """Open the object for this processor.

    Raises `NativeUnavailable`, and `InvalidParameter` as `choose_isa` does; `MemoryError` where
    the system is short of memory or descriptors now: without the kernels others would compute.
    """
    return _open(choose_isa(pinned), folder or FOLDER)


def native_fault(pinned: str = "") -> str:
    """Why the kernels cannot be used here, or an empty string."""
    try:
        open_library(pinned)
    except (NativeUnavailable, InvalidParameter) as error:
        return str(error)
    return ""


def limit_spinning() -> None:
    """Bound how long compute threads spin, unless the environment says so itself.

    Must come before their library is loaded: one by the kernels, another by torch.
    """
    os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)


@cache
def _open(isa: str, folder: pathlib.Path) -> NativeLibrary:
    limit_spinning()
    path = folder / library_name(isa)
    if not path.exists():
        raise NativeUnavailable(
            f"{path.name} is not there: no C++ compiler was found at installation, or a checkout"
            f" has not been built ({REBUILD})"
        )
    try:
        functions = ctypes.CDLL(str(path))
        functions.triolet_source_hash.restype = ctypes.c_char_p
        found = functions.triolet_source_hash().decode()
    except (OSError, AttributeError) as error:
        if any(words in str(error) for words in _SHORTAGES):
            raise MemoryError(str(error)) from error
        raise NativeUnavailable(f"{path.name} cannot be opened: {error}") from error
    if found != (wanted := source_hash(isa, folder)):
        raise NativeUnavailable(
            f"{path.name} is stale: compiled from sources {found}, here are {wanted} ({REBUILD})"
        )
    return NativeLibrary(isa, found, functions)
