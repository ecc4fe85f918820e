"""What chat and completions share: the runtime object against the top level, stream options."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.completion_requests import SHARED_FIELDS, read_shared
from triolet.api.schema.tables import Body

SHARED = Body(SHARED_FIELDS)


def test_our_own_object_wins_over_the_top_level() -> None:
    values = SHARED.read(
        {
            "seed": 1,
            "top_p": 0.5,
            "priority": 2,
            "cache_salt": "top",
            "runtime": {"seed": 5, "priority": 7, "token_ids": True},
        }
    )
    options, sampling = read_shared(values, max_tokens=9)
    assert (sampling.seed, sampling.top_p, sampling.max_tokens) == (5, 0.5, 9)
    assert (options.runtime.priority, options.runtime.cache_salt) == (7, "top")
    assert options.with_token_ids


def test_defaults() -> None:
    options, sampling = read_shared({}, max_tokens=None)
    assert sampling.max_tokens is None
    assert not any((options.stream, options.include_usage, options.with_token_ids))


def test_fields_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ApiError) as caught:
        read_shared(SHARED.read({"stream_options": {"include_usage": True}}), max_tokens=None)
    assert caught.value.param == "stream_options"
    with pytest.raises(ApiError) as caught:
        read_shared(SHARED.read({"min_tokens": 5}), max_tokens=4)
    assert caught.value.param == "min_tokens"
