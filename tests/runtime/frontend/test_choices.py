"""One request for each choice of a prompt: alike but for their number."""

import attrs
import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.frontend.choices import CHOICE_TOKENS_MAX, split_choices
from triolet.transports.array import Array

ADD = AddRequest(
    request_id="r",
    attempt=0,
    prompt_token_ids=[1, 2, 3],
    sampling=SamplingParams(seed=5, prompt_logprobs=1, logprobs=2),
)


def test_one_choice_is_the_request_itself() -> None:
    assert split_choices(ADD) == [ADD]


def test_choices_differ_in_number_and_name_alone() -> None:
    whole = attrs.evolve(ADD, sampling=attrs.evolve(ADD.sampling, n=3))
    choices = split_choices(whole)
    assert [choice.request_id for choice in choices] == ["r#0", "r#1", "r#2"]
    assert [choice.choice for choice in choices] == [0, 1, 2]
    assert {choice.parent for choice in choices} == {"r"}
    assert [choice.sampling.prompt_logprobs for choice in choices] == [1, None, None]
    for choice in choices:
        assert (choice.sampling.seed, choice.sampling.logprobs) == (5, 2)
        again = attrs.evolve(choice, request_id="r", choice=0, parent="")
        assert attrs.evolve(again, sampling=whole.sampling) == whole


def test_too_many_bytes_of_embeddings_are_refused() -> None:
    array = Array("float32", (3, 2**19), bytes(3 * 2**21))
    sampling = SamplingParams(seed=1, n=8)
    fits = attrs.evolve(ADD, sampling=sampling, prompt_embeds=array)
    assert [one.prompt_embeds for one in split_choices(fits)] == [array] * 8
    with pytest.raises(InvalidParameter, match="n must be at most 8 for embeddings of 6291456"):
        split_choices(attrs.evolve(fits, sampling=attrs.evolve(sampling, n=9)))


@pytest.mark.parametrize("allowed", [None, tuple(range(10))])
def test_too_much_together_is_refused(allowed: tuple[int, ...] | None) -> None:
    sampling = SamplingParams(seed=1, n=128, allowed_token_ids=allowed)
    tokens = CHOICE_TOKENS_MAX // 128 - len(allowed or ())
    fits = attrs.evolve(ADD, sampling=sampling, prompt_token_ids=[1] * tokens)
    assert len(split_choices(fits)) == 128
    with pytest.raises(InvalidParameter, match="n must be at most 127"):
        split_choices(attrs.evolve(fits, prompt_token_ids=[1] * (tokens + 1)))
