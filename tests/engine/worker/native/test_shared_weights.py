"""Weights that exist once: filled by one, sealed, and mapped by all."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest

from triolet.engine.kernels.binding import Bytes
from triolet.engine.kernels.shared_memory import SharedMapping
from triolet.engine.worker.native.shared_weights import (
    SharedWeights,
    WeightsRecord,
    is_sealed,
    share_weights,
)

from ...kernels.test_shared_memory import needs_huge_pages

pytestmark = needs_huge_pages
SIZE = 3 * 2**20
RECORD = WeightsRecord(key="key", numerics_id="id", files=[("a", 1, 2)])
# Takes the lock, says so, and holds it until it is killed.
HOLDER = """
import sys, signal
from triolet.engine.worker.native import shared_weights
def fill(memory):
    memory[:] = 9
    print("locked", flush=True)
    signal.pause()
shared_weights.share_weights(
    int(sys.argv[1]), "key", int(sys.argv[2]),
    fill=fill, pause=lambda seconds: None, progress=lambda fraction: None,
)
"""


@pytest.fixture
def fd() -> Iterator[int]:
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    yield memory
    os.close(memory)


class Stopped(Exception):
    pass


@attrs.define
class Filler:
    """A worker that fills with one value."""

    value: int = 5
    fills: int = 0
    waits: int = 0
    waits_max: int = 0

    def fill(self, memory: Bytes) -> WeightsRecord:
        assert len(memory) == SIZE
        memory[:] = self.value
        self.fills += 1
        return RECORD

    def pause(self, seconds: float) -> None:
        self.waits += 1
        if self.waits > self.waits_max:
            raise Stopped

    def share(self, fd: int, key: str = "key", size: int = SIZE) -> SharedWeights | None:
        return share_weights(
            fd, key, size, fill=self.fill, pause=self.pause, progress=lambda fraction: None
        )


def test_the_first_fills_and_the_others_find_the_same(fd: int) -> None:
    first, second = Filler(5), Filler(6)
    assert not is_sealed(fd)
    mine, theirs = first.share(fd), second.share(fd)
    assert is_sealed(fd)
    assert mine is not None
    assert theirs is not None
    assert (first.fills, second.fills) == (1, 0)
    assert mine.record == theirs.record == RECORD
    assert mine.memory.sum() == theirs.memory.sum() == 5 * SIZE


def test_what_is_complete_cannot_be_changed_by_anyone(fd: int) -> None:
    Filler().share(fd)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(OSError, match="mmap"):
        SharedMapping.of(fd, SIZE, writable=True)


def test_weights_of_another_key_or_size_are_not_shared(fd: int) -> None:
    Filler().share(fd)
    other = Filler()
    assert other.share(fd, key="other") is None
    assert other.share(fd, size=2 * SIZE) is None
    assert other.share(fd, size=SIZE - 4096) is None
    assert other.fills == 0


def test_a_failure_leaves_it_to_the_next(fd: int) -> None:
    class Failing(Filler):
        def fill(self, memory: Bytes) -> WeightsRecord:
            super().fill(memory)
            raise Stopped

    with pytest.raises(Stopped):
        Failing(1).share(fd)
    assert not is_sealed(fd)
    found = Filler(2).share(fd)
    assert found is not None
    assert found.memory.sum() == 2 * SIZE


@pytest.mark.slow
def test_who_is_killed_while_it_fills_leaves_it_to_the_next(fd: int) -> None:
    command = [sys.executable, "-c", HOLDER, str(fd), str(SIZE)]
    with subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"locked\n"
            waiting = Filler(waits_max=3)
            with pytest.raises(Stopped):  # it waits, and can be stopped meanwhile
                waiting.share(fd)
            assert (waiting.waits, waiting.fills) == (4, 0)
        finally:
            holder.send_signal(signal.SIGKILL)
    assert not is_sealed(fd)
    found = Filler(3).share(fd)
    assert found is not None
    assert found.memory.sum() == 3 * SIZE
