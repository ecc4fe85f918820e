"""Mistral against `transformers`, with windows that prompts outgrow."""

import pathlib

import pytest
import transformers

from .reference import check_against_reference

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("window", [None, 2, 21, 64, 65])
def test_logits_and_greedy_tokens_are_the_references(
    tmp_path: pathlib.Path, window: int | None
) -> None:
    check_against_reference(tmp_path, transformers.MistralForCausalLM, sliding_window=window)
