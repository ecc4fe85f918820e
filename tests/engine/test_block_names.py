"""Names of blocks: what a successor finds, and when it must find nothing."""

import os
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from triolet.engine.block_names import NAME_BYTES, drop_names, open_block_names
from triolet.engine.core.kv_cache_manager import BlockPool
from triolet.engine.step_messages import KVMemory, WorkerReady
from triolet.fuzz.simulator.stores import Stores

from ..leaks import check_no_leaks

READY = WorkerReady(
    kv_blocks=4,
    max_model_len=64,
    vocab_size=8,
    numerics_id="bits",
    bitwise=True,
    kv_memory=KVMemory.FOUND,
)
A, B, C = (bytes([letter]) * NAME_BYTES for letter in b"abc")


@pytest.fixture
def fd() -> Iterator[int]:
    with check_no_leaks():
        found = os.memfd_create("names")
        yield found
        os.close(found)


def life(fd: int, ready: WorkerReady = READY) -> dict[int, bytes]:
    """What the next engine finds."""
    with open_block_names(fd, ready, 16) as names:
        assert names is not None
        found = names.found()
        BlockPool(ready.kv_blocks, names).check_invariants()
        return found


def test_a_pool_writes_down_what_can_be_found_and_nothing_else(fd: int) -> None:
    with open_block_names(fd, READY, 16) as names:
        pool = BlockPool(4, names)
        first = pool.take(3)
        for block_id, name in zip(first, (A, B, C), strict=True):
            pool.register(block_id, name)
        pool.forget(first[1:2])
        pool.release(first)
        pool.check_invariants()
    assert life(fd) == {first[0]: A, first[2]: C}
    with open_block_names(fd, READY, 16) as names:
        pool = BlockPool(4, names)
        assert pool.free_count == 4
        found = pool.find(C)
        assert found == first[2]
        pool.share([found])
        pool.take(3)
        pool.check_invariants()
        assert pool.find(A) is None, "it was taken for something else"
    assert life(fd) == {first[2]: C}


@pytest.mark.parametrize(
    "change",
    [
        {"kv_memory": KVMemory.FRESH},
        {"numerics_id": "other bits"},
        {"kv_blocks": 5},
    ],
    ids=str,
)
def test_names_of_another_memory_are_cleared(fd: int, change: dict[str, Any]) -> None:
    with open_block_names(fd, READY, 16) as names:
        assert names is not None
        names.put(2, A)
    other = attrs.evolve(READY, **change)
    assert life(fd, other) == {}
    assert life(fd) == {}, "for good"


def test_dropped_names_are_of_no_life_after(fd: int) -> None:
    drop_names(fd)
    assert os.fstat(fd).st_size == 0, "there is nothing to drop yet"
    with open_block_names(fd, READY, 16) as names:
        assert names is not None
        names.put(2, A)
        drop_names(fd)
        names.put(3, B)  # by one that dies a moment later
        assert names.found() == {}
    assert life(fd) == {}


def test_a_name_that_is_half_written_is_found_by_no_hash(fd: int) -> None:
    with open_block_names(fd, READY, 16) as names:
        assert names is not None
        names.put(2, A[: NAME_BYTES // 2] + bytes(NAME_BYTES // 2))
        pool = BlockPool(4, names)
    assert pool.find(A) is None
    assert pool.free_count == 4


@pytest.mark.parametrize("stores", range(4))
@pytest.mark.parametrize("is_torn", [False, True])
def test_one_that_dies_while_it_clears_leaves_no_name_of_the_lost_memory(
    fd: int, stores: int, is_torn: bool
) -> None:
    with open_block_names(fd, READY, 16) as names:
        assert names is not None
        for block_id, name in enumerate((A, B, C)):
            names.put(block_id, name)
        drop_names(fd)  # by its worker, which takes other memory
        life_of_it = Stores()
        life_of_it.add(names)
        life_of_it.plan_death(stores, life_of_it.end, is_torn=is_torn)
        names.clear()
    assert life(fd) == {}, "its successor finds the other memory"


def test_two_halves_of_one_name_are_one(fd: int) -> None:
    half = A[: NAME_BYTES // 2] + bytes(NAME_BYTES // 2)
    with open_block_names(fd, READY, 16) as names:
        assert names is not None
        names.put(1, half)  # by one that dies
        names.put(3, half)  # by its successor, which did not find what it has computed, and dies
        pool = BlockPool(4, names)
        pool.check_invariants()
        pool.take(4)
        pool.check_invariants()
    assert life(fd) == {}


def test_without_memory_that_outlives_it_there_are_no_names(fd: int) -> None:
    own = attrs.evolve(READY, kv_memory=KVMemory.OWN)
    for given, ready in ((None, READY), (fd, own)):
        with open_block_names(given, ready, 16) as names:
            assert names is None
