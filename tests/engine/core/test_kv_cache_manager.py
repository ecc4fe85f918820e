"""Block tables: as long as the tokens need, all or nothing; any order of calls leaks no block."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from triolet.engine.core.block_pool import BlockPool
from triolet.engine.core.kv_cache_manager import KVCacheManager
from triolet.engine.core.request import Request, make_request
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams


def make(name: str = "a") -> Request:
    add = AddRequest(
        request_id=name, attempt=1, prompt_token_ids=[1], sampling=SamplingParams(seed=1)
    )
    return make_request("f0", add, arrival=1, max_model_len=100)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (12, 3)]
)
def test_table_covers_the_tokens(tokens: int, blocks: int) -> None:
    manager, request = KVCacheManager(4, BlockPool(3)), make()
    assert manager.blocks_missing(request, tokens) == blocks
    appended = manager.grow(request, tokens)
    assert appended is not None
    assert len(appended) == blocks
    assert request.block_ids == appended
    assert manager.grow(request, tokens) == []
    manager.check_invariants([request])


def test_growth_that_does_not_fit_changes_nothing() -> None:
    manager, request, other = KVCacheManager(4, BlockPool(3)), make("a"), make("b")
    assert manager.grow(request, 8) == [0, 1]
    assert manager.grow(other, 5) is None
    assert other.block_ids == []
    assert manager.grow(other, 4) == [2]
    manager.free(request)
    assert manager.grow(other, 12) is not None
    manager.check_invariants([request, other])


def test_leak_fails_the_invariants() -> None:
    manager, request = KVCacheManager(4, BlockPool(3)), make()
    manager.grow(request, 8)
    with pytest.raises(AssertionError):
        manager.check_invariants([])
    request.computed_tokens = 9
    with pytest.raises(AssertionError):
        manager.check_invariants([request])


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 30)), max_size=30))
def test_no_order_of_calls_leaks_a_block(calls: list[tuple[int, int | None]]) -> None:
    manager = KVCacheManager(4, BlockPool(7))
    requests = [make(f"r{index}") for index in range(4)]
    for index, tokens in calls:
        if tokens is None:
            manager.free(requests[index])
        else:
            before = list(requests[index].block_ids)
            missing = manager.blocks_missing(requests[index], tokens)
            fits = missing <= manager.pool.free_count
            appended = manager.grow(requests[index], tokens)
            assert (appended is not None) == fits
            assert requests[index].block_ids == before + (appended or [])
        manager.check_invariants(requests)
