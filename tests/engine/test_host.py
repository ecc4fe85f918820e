"""Cores and memory of the machine."""

import os
import pathlib

import pytest

from triolet.engine.host import cores, memory_bytes, threads_default


@pytest.mark.parametrize(("usable", "threads"), [({0}, 1), ({0, 1}, 1), ({2, 3, 5, 7}, 3)])
def test_one_core_is_left_to_the_others(
    monkeypatch: pytest.MonkeyPatch, usable: set[int], threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable)
    assert cores() == len(usable)
    assert threads_default() == threads


@pytest.mark.parametrize(
    ("content", "expected"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1),
     ("6400000 100000", 8), ("", 8), ("1 0", 8)],
)  # fmt: skip
def test_a_quota_counts_as_whole_cores(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "cpu.max").write_text(content)
    assert cores(tmp_path / "cpu.max") == expected
    assert cores(tmp_path / "none") == 8


def test_memory_is_counted_in_bytes() -> None:
    assert memory_bytes() > 2**27
