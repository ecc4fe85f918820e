"""Build of the kernels: one shared object for each instruction set (ISA), from the same sources.

A command (`python -m triolet.engine.kernels.build`) and what `setup.py` runs, which loads this file
by its path: so it imports nothing of the house. The hash of sources and flags is compiled in, and
the loader refuses an object whose hash is not that of the sources beside it.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
from types import MappingProxyType

FOLDER = pathlib.Path(__file__).resolve().parent
# No fused multiply-add but the explicit ones, no fast math: the order and rounding of every
# operation is what the source says, so that a row's bits do not depend on the compiler's mood.
FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden", "-g0",
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
# The best first, then down to every x86-64. A machine runs each one below the best that it can.
ISA_FLAGS = MappingProxyType(
    {
        "avx512bf16": ("-march=x86-64-v4", "-mavx512bf16", "-mprefer-vector-width=512"),
        "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
        "avx2": ("-march=x86-64-v3",),
        "plain": ("-march=x86-64",),
    }
)
# A compiler that hangs must not hang an installation.
COMPILE_TIMEOUT_S = 600


class CompilerMissing(Exception):
    """There is no C++ compiler here, or the one there is fails; says which and what it said."""


def library_name(isa: str) -> str:
    """The shared object's file name."""
    return f"kernels-{isa}.so"


def sources(folder: pathlib.Path = FOLDER) -> list[pathlib.Path]:
    """The C++ files, headers included, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".cpp", ".h"))


def source_hash(isa: str, folder: pathlib.Path = FOLDER) -> str:
    """Hash of all sources and of this instruction set's flags, 16 hexadecimal digits."""
    whole = hashlib.sha256(" ".join((*FLAGS, *ISA_FLAGS[isa])).encode())
    for path in sources(folder):
        whole.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def build(
    target: pathlib.Path = FOLDER, isas: tuple[str, ...] = tuple(ISA_FLAGS), *,
    folder: pathlib.Path = FOLDER,
) -> None:  # fmt: skip
    """Compile the objects of `isas` into `target`, side by side; each appears when it is whole.

    They are of the C++ files in `folder`, which may include the kernels' headers. Raises
    `CompilerMissing`.
    """
    name = os.environ.get("CXX", "g++").split()
    if not name or shutil.which(name[0]) is None:
        raise CompilerMissing(f"no C++ compiler: {' '.join(name) or 'CXX'} is not on the path")
    target.mkdir(parents=True, exist_ok=True)
    files = [str(path) for path in sources(folder) if path.suffix == ".cpp"]
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for isa in isas:
            hash_flag = f'-DTRIOLET_SOURCE_HASH="{source_hash(isa, folder)}"'
            command = [*name, *FLAGS, *ISA_FLAGS[isa], hash_flag, f"-I{FOLDER}", *files]
            running[isa] = subprocess.Popen(
                [*command, "-o", str(_partial(target, isa))], stderr=subprocess.PIPE, text=True
            )
        for isa, process in running.items():
            _, errors = process.communicate(timeout=COMPILE_TIMEOUT_S)
            if process.returncode != 0:
                raise CompilerMissing(f"{name[0]} failed for {isa}:\n{errors}")
            os.replace(_partial(target, isa), target / library_name(isa))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerMissing(f"{name[0]}: {error}") from error
    finally:
        for isa, process in running.items():
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
            _partial(target, isa).unlink(missing_ok=True)


def stale(target: pathlib.Path = FOLDER) -> tuple[str, ...]:
    """The instruction sets whose object is not there or was compiled from other sources."""
    return tuple(isa for isa in ISA_FLAGS if not _is_current(target, isa))


def _is_current(target: pathlib.Path, isa: str) -> bool:
    path = target / library_name(isa)
    return path.exists() and source_hash(isa).encode() in path.read_bytes()


def _partial(target: pathlib.Path, isa: str) -> pathlib.Path:
    return target / f"{library_name(isa)}.{os.getpid()}.partial"


def main() -> int:
    """Build what is stale; 1 if that fails, with the reason on stderr."""
    parser = argparse.ArgumentParser(description="Compile the native kernels, if they are stale.")
    parser.add_argument("--force", action="store_true", help="compile even what is current")
    parser.add_argument("isas", nargs="*", help=f"of {', '.join(ISA_FLAGS)}; none: all that are")
    arguments = parser.parse_args()
    if not set(arguments.isas) <= set(ISA_FLAGS):
        parser.error(f"instruction sets are {', '.join(ISA_FLAGS)}")
    wanted = tuple(arguments.isas or ISA_FLAGS)
    if not arguments.force:
        wanted = tuple(isa for isa in wanted if isa in stale())
    try:
        build(isas=wanted)
    except CompilerMissing as error:
        sys.stderr.write(f"native kernels are not built: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
