"""`triolet doctor`: facts, faults with a way out, and nothing secret."""

import importlib.metadata
import json
import pathlib
import resource
import sys
from collections.abc import Iterator

import pytest

from triolet.api.commands import doctor
from triolet.command_line import run_words
from triolet.engine.kernels import library, shared_memory


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        run_words(["doctor", *words])
    return ended.value.code, capsys.readouterr().out


def test_a_sound_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_API_KEY", "secret")
    code, out = run([], capsys)
    assert code == 0
    for word in ("triolet", "python", "trio ", "torch", "processor", "memory", "TRIOLET_API_KEY"):
        assert word in out
    assert "secret" not in out
    assert "FAULT" not in out


def test_json_has_the_same_topics(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = run(["--json"], capsys)
    topics = [finding["topic"] for finding in json.loads(out)]
    assert topics[:2] == ["triolet", "python"]
    assert "death signal" in topics


def test_a_fault_names_the_remedy_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    code, out = run([], capsys)
    assert code == 1
    assert "FAULT: ulimit -n 1024" in out


def test_no_torch_is_no_fault_where_the_kernels_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = {finding.topic: finding for finding in doctor.all_findings()}
    assert found["torch"] == doctor.Finding("torch", "is not installed")
    assert "pytest" not in found
    monkeypatch.setenv("TRIOLET_ISA", "none")
    found = {finding.topic: finding for finding in doctor.all_findings()}
    assert found["native kernels"].remedy == "pip install 'triolet[torch]'"


def test_what_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[doctor.Finding]:
        yield doctor.Finding("memory", pathlib.Path("/nowhere").read_text())

    monkeypatch.setitem(doctor._LOOKS, "memory", broken)
    found = [finding for finding in doctor.all_findings() if finding.topic == "memory"]
    assert found[0].fact.startswith("could not be read: ")


@pytest.mark.parametrize(("advice", "fact"), [(25, "huge pages: weights once"), (1000, "no huge")])
def test_shared_memory_says_whether_weights_and_cache_outlive_a_worker(
    advice: int, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if advice == shared_memory._COLLAPSE and not shared_memory.has_huge_pages():
        pytest.skip("the kernel merges none")
    monkeypatch.setattr(shared_memory, "_COLLAPSE", advice)  # 1000: no kernel knows it
    (found,) = [each for each in doctor.all_findings() if each.topic == "shared memory"]
    assert found.fact.startswith(fact)
    assert not found.remedy


def test_kernels_that_are_not_there_are_no_fault_and_say_why(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    code, out = run([], capsys)
    assert code == 0
    assert "none, so that torch computes: kernels-" in out
