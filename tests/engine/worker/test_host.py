"""Cores and memory of the machine."""

import os

import pytest

from triolet.engine.worker.host import cores, memory_bytes, threads_default


@pytest.mark.parametrize(("usable", "threads"), [({0}, 1), ({0, 1}, 1), ({2, 3, 5, 7}, 3)])
def test_one_core_is_left_to_the_others(
    monkeypatch: pytest.MonkeyPatch, usable: set[int], threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable)
    assert cores() == len(usable)
    assert threads_default() == threads


def test_memory_is_counted_in_bytes() -> None:
    assert memory_bytes() > 2**27
