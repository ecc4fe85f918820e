"""Outputs compare by value and usage adds up as OpenAI's does."""

from triolet.runtime.text.outputs import GenerationOutput, Usage


def test_outputs_compare_by_value() -> None:
    assert GenerationOutput("a", [1], 1) == GenerationOutput("a", [1], 1, index=0)
    assert GenerationOutput("a", [1], 1) != GenerationOutput("a", [1], 2)


def test_total_tokens_do_not_count_cached_ones_twice() -> None:
    assert Usage(prompt_tokens=7, output_tokens=3, cached_tokens=5).total_tokens == 10
