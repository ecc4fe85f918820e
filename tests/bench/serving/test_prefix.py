"""The same turns with the cache and without: what it finds is counted."""

import pytest

from triolet.bench.options import PrefixOptions
from triolet.bench.serving.prefix import measure_prefix


@pytest.mark.slow
async def test_turns_that_begin_alike_are_found_with_the_cache_alone() -> None:
    options = PrefixOptions(
        turns=6, conversations=2, system_tokens=64, user_tokens=4, tokens=3, seed=1
    )
    ended: list[int] = []
    on, off = await measure_prefix(
        None, options, engine={"executor": "null", "prefix_cache": False}, on_ended=ended.append
    )
    assert (on.cache, off.cache) == (True, False)
    assert on.turns == off.turns == 6
    # Prompts of two conversations: 68, 75 and 82 tokens.
    assert on.prompt_tokens == off.prompt_tokens == 2 * (68 + 75 + 82)
    # Each later turn has at least the four whole blocks of the system prompt.
    assert on.cached_tokens >= 4 * 64
    assert 0.5 < on.hit_rate < 1
    assert off.hit_rate == 0
    assert on.later_s.p50 > 0
    assert sum(ended) == 2 * 2 * (1 + 3)
