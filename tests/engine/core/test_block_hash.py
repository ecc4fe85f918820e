"""Digests of blocks: equal for equal prefixes under one root, different for all else."""

import hypothesis.strategies as st
from hypothesis import given, settings

from triolet.engine.core.block_hash import DIGEST_BYTES, block_digest, root_digest

texts = st.text(max_size=3)
blocks = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=3)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.tuples(*[texts] * 4), st.tuples(*[texts] * 4))
def test_a_root_tells_its_parts_apart(
    first: tuple[str, str, str, str], second: tuple[str, str, str, str]
) -> None:
    assert (root_digest(*first) == root_digest(*second)) == (first == second)
    assert len(root_digest(*first)) == DIGEST_BYTES


def test_the_same_text_in_another_part_is_another_root() -> None:
    roots = {root_digest("n", "ab", ""), root_digest("n", "a", "b"), root_digest("n", "", "ab")}
    roots |= {root_digest("nab", "", ""), root_digest("n", "", "", "ab")}
    assert len(roots) == 5


def chain(root: bytes, content: list[list[int]]) -> bytes:
    for token_ids in content:
        root = block_digest(root, token_ids)
    return root


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(blocks, blocks, st.booleans())
def test_a_chain_tells_prefixes_apart(
    first: list[list[int]], second: list[list[int]], same_root: bool
) -> None:
    roots = (b"r" * DIGEST_BYTES, (b"r" if same_root else b"s") * DIGEST_BYTES)
    equal = chain(roots[0], first) == chain(roots[1], second)
    assert equal == (same_root and first == second)


def test_large_token_ids_are_hashed_whole() -> None:
    assert block_digest(b"", [2**31 - 1]) != block_digest(b"", [2**15 - 1])
