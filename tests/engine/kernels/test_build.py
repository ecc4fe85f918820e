"""The build command: what is stale, what a missing or failing compiler leads to."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from triolet.engine.config import ISAS
from triolet.engine.kernels import build as build_module
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
    with pytest.raises(CompilerMissing, match=r"no C\+\+ compiler: .*is not on the path"):
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


def test_the_checkout_is_where_the_build_puts_objects_by_default() -> None:
    assert pathlib.Path(build_module.__file__).resolve().parent == FOLDER
