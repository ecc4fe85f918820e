"""Which object is opened, and what is said of one that is missing, stale or broken."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy
import pytest

from triolet.engine.config import ISAS
from triolet.engine.errors import InvalidParameter
from triolet.engine.kernels.binding import HUGE_PAGE_BYTES, address_of, take_memory
from triolet.engine.kernels.build import (
    FOLDER,
    ISA_FLAGS,
    CompilerMissing,
    build,
    library_name,
    source_hash,
    sources,
    stale,
)
from triolet.engine.kernels.library import (
    NativeUnavailable,
    choose_isa,
    machine_isas,
    native_fault,
    open_library,
)

from ...shortages import no_descriptors

V3 = "avx avx2 fma f16c bmi1 bmi2 movbe abm"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
ALL = tuple(ISA_FLAGS)
COMPILER = os.environ.get("CXX", "g++").split()[0]
built = pytest.mark.skipif(bool(native_fault("plain")), reason="no compiler, no kernels")


@pytest.fixture(autouse=True)
def no_isa_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIOLET_ISA", raising=False)


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no compiler, no kernels")
def test_where_a_compiler_is_the_kernels_are_those_of_the_sources() -> None:
    # Stale or missing, they would have every other test of them skipped in silence.
    assert stale() == (), "python -m triolet.engine.kernels.build"


@pytest.mark.parametrize(
    ("flags", "isas"),
    [
        (f"{V4} avx512_bf16", ALL),
        (V4, ALL[1:]),
        (V3, ALL[2:]),
        ("avx fma sse4_2", ALL[3:]),
    ],
)
def test_a_processor_runs_every_set_below_its_best(
    tmp_path: pathlib.Path, flags: str, isas: tuple[str, ...]
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"vendor_id\t: X\nflags\t\t: fpu {flags} sse2\n\nflags\t: fpu\n")
    assert machine_isas(cpuinfo) == isas


def test_intel_multiplies_floats_sooner_than_pairs_of_bf16(tmp_path: pathlib.Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    words = f"vendor_id\t: GenuineIntel\nmodel name\t: X\nflags\t\t: {V4} avx512_bf16\n\n"
    cpuinfo.write_text(2 * words)
    isas = machine_isas(cpuinfo)
    assert isas == ("avx512", "avx512bf16", *ALL[2:])
    assert choose_isa(isas=isas) == "avx512"
    assert choose_isa("avx512bf16", isas=isas) == "avx512bf16"
    cpuinfo.write_text(words.replace("avx512_bf16", ""))
    assert machine_isas(cpuinfo) == ALL[1:]


def test_a_platform_that_does_not_say_gets_what_all_have(tmp_path: pathlib.Path) -> None:
    assert machine_isas(tmp_path / "none") == ("plain",)


def test_the_best_is_chosen() -> None:
    assert choose_isa(isas=ALL) == "avx512bf16"
    assert choose_isa(isas=ALL[2:]) == "avx2"


def test_the_variable_lowers_and_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_ISA", "avx2")
    assert choose_isa(isas=ALL) == "avx2"
    monkeypatch.setenv("TRIOLET_ISA", "avx512")
    assert choose_isa(isas=ALL[2:]) == "avx2"
    assert choose_isa("avx512", isas=ALL[2:]) == "avx2"  # as a command passes it on
    quickest_first = ("avx512", "avx512bf16", *ALL[2:])
    assert choose_isa(isas=quickest_first) == "avx512"
    monkeypatch.setenv("TRIOLET_ISA", "avx512bf16")
    assert choose_isa(isas=quickest_first) == "avx512bf16"
    assert choose_isa(isas=ALL[1:]) == "avx512"
    monkeypatch.setenv("TRIOLET_ISA", "sse9")
    with pytest.raises(InvalidParameter, match="TRIOLET_ISA must be one of avx512bf16"):
        choose_isa(isas=ALL)


def test_a_pin_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_isa("plain", isas=ALL) == "plain"
    with pytest.raises(InvalidParameter, match="isa must be one of avx512bf16"):
        choose_isa("sse9", isas=ALL)
    with pytest.raises(InvalidParameter, match="avx512 is not among what can run here"):
        choose_isa("avx512", isas=ALL[2:])
    monkeypatch.setenv("TRIOLET_ISA", "avx2")
    with pytest.raises(InvalidParameter, match="avx512 is not among what can run here"):
        choose_isa("avx512", isas=ALL)


def test_a_missing_object_says_what_helps(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NativeUnavailable, match=r"kernels-plain\.so is not there: no C\+\+ comp"):
        open_library("plain", folder=tmp_path)


def test_a_broken_object_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / library_name("plain")).write_bytes(b"not an object")
    with pytest.raises(NativeUnavailable, match=r"kernels-plain\.so cannot be opened"):
        open_library("plain", folder=tmp_path)


def test_want_of_descriptors_does_not_make_an_object_broken(tmp_path: pathlib.Path) -> None:
    (tmp_path / library_name("plain")).write_bytes(b"not an object")
    with no_descriptors(), pytest.raises(MemoryError):
        open_library("plain", folder=tmp_path)


@built
def test_an_object_of_other_sources_is_refused(tmp_path: pathlib.Path) -> None:
    for path in sources():
        shutil.copy(path, tmp_path)
    shutil.copy(FOLDER / library_name("plain"), tmp_path)
    sources(tmp_path)[0].write_text("// changed\n")
    with pytest.raises(NativeUnavailable, match=r"kernels-plain\.so is stale: compiled from"):
        open_library("plain", folder=tmp_path)


@built
@pytest.mark.parametrize("isa", machine_isas())
def test_every_object_that_can_run_here_knows_what_it_is(isa: str) -> None:
    library = open_library(isa)
    assert (library.isa, library.source_hash) == (isa, source_hash(isa))
    assert native_fault(isa) == ""


BUILD = "triolet.engine.kernels.build"


@pytest.fixture
def no_compiler(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


def test_the_hash_is_of_sources_names_and_flags(tmp_path: pathlib.Path) -> None:
    hashes = {isa: source_hash(isa) for isa in ISA_FLAGS}
    assert len(set(hashes.values())) == len(ISA_FLAGS)
    for path in sources():
        shutil.copy(path, tmp_path)
    assert source_hash("plain", tmp_path) == hashes["plain"]
    changed = sources(tmp_path)[0]
    changed.write_bytes(changed.read_bytes() + b"\n")
    assert source_hash("plain", tmp_path) != hashes["plain"]


def test_what_is_missing_or_of_other_sources_is_stale(tmp_path: pathlib.Path) -> None:
    (tmp_path / library_name("avx2")).write_bytes(b"ELF " + source_hash("avx2").encode())
    (tmp_path / library_name("plain")).write_bytes(b"ELF " + source_hash("avx2").encode())
    assert stale(tmp_path) == ("avx512bf16", "avx512", "plain")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_build_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CompilerMissing, match=r"no C\+\+ compiler: \S+ is not on the path"):
        build(tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "failing"
    compiler.write_text("#!/bin/sh\necho 'unheard-of flag' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(CompilerMissing, match="failed for avx512bf16:\nunheard-of flag"):
        build(tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.slow
def test_the_command_fails_aloud_without_a_compiler(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "CXX": "/nowhere/compiler"}
    ended = subprocess.run(
        [sys.executable, "-m", BUILD, "--force"],
        capture_output=True, text=True, timeout=240, env=environment,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "native kernels are not built: no C++ compiler" in ended.stderr


@pytest.mark.slow
def test_the_command_refuses_an_instruction_set_that_there_is_not() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", BUILD, "avx1024"], capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 2
    assert "instruction sets are avx512bf16" in ended.stderr


def test_the_settings_know_every_set() -> None:
    assert tuple(ISA_FLAGS) == ISAS


@pytest.mark.parametrize("size", [1, HUGE_PAGE_BYTES + 5])
def test_memory_is_zero_and_aligned(size: int) -> None:
    memory = take_memory(size)
    assert len(memory) == size
    assert address_of(memory) % HUGE_PAGE_BYTES == 0
    assert not memory.any()


def test_a_view_keeps_it() -> None:
    view = take_memory(64).view(numpy.int32)[4:]
    view[:] = 7
    assert view.tolist() == [7] * 12
