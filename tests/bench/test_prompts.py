"""Prompts are a function of the seed, with lengths in their bounds."""

import pytest

from triolet.bench.prompts import Work
from triolet.engine.errors import InvalidParameter

WORK = Work(requests=50, prompt_min=3, prompt_max=9, tokens=2, seed=4)


def test_the_same_seed_gives_the_same_prompts_of_these_tokens_and_lengths() -> None:
    prompts = WORK.prompts(range(10, 20))
    assert prompts == WORK.prompts(range(10, 20))
    assert len(prompts) == 50
    assert {len(prompt) for prompt in prompts} == set(range(3, 10))
    assert {token for prompt in prompts for token in prompt} == set(range(10, 20))


def test_another_seed_gives_others() -> None:
    other = Work(requests=50, prompt_min=3, prompt_max=9, tokens=2, seed=5)
    assert other.prompts(range(10, 20)) != WORK.prompts(range(10, 20))


@pytest.mark.parametrize(
    ("field", "value"), [("requests", 0), ("prompt_min", 0), ("tokens", -1), ("prompt_max", 2)]
)
def test_what_makes_no_work_is_refused_by_name(field: str, value: int) -> None:
    words = {"requests": 1, "prompt_min": 3, "prompt_max": 9, "tokens": 2, field: value}
    with pytest.raises(InvalidParameter) as caught:
        Work(**words)
    assert caught.value.parameter == field
