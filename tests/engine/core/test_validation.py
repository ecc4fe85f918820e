"""What an ADD must be: each refusal names its field."""

import attrs
import pytest

from triolet.engine.core.validation import (
    BAD_WORD_SPELLINGS_MAX,
    BAD_WORD_TOKENS_MAX,
    LABEL_CHARACTERS_MAX,
    REQUEST_ID_CHARACTERS_MAX,
    RequestLimits,
    check_request,
)
from triolet.engine.errors import InvalidParameter, PromptTooLong
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams

LIMITS = RequestLimits(max_model_len=8, vocab_size=10)
GOOD = AddRequest(
    request_id="a",
    attempt=0,
    prompt_token_ids=[0, 9],
    output_token_ids=[0, 9],
    eos_token_ids=[0, 9],
    credit=0,
    sampling=SamplingParams(seed=0, min_tokens=2, max_tokens=100, stop_token_ids=(3,)),
)
ALL_IDS = list(range(10))


def sampling(
    stop_token_ids: tuple[int, ...] = (), *, seed: int | None = 0, min_tokens: int = 2
) -> SamplingParams:
    return SamplingParams(seed=seed, min_tokens=min_tokens, stop_token_ids=stop_token_ids)


def test_good_request_passes() -> None:
    check_request(GOOD, LIMITS)
    check_request(attrs.evolve(GOOD, prompt_token_ids=[1] * 7), LIMITS)
    check_request(attrs.evolve(GOOD, output_token_ids=[1] * 50), LIMITS)


@pytest.mark.parametrize(
    ("changed", "parameter"),
    [
        (attrs.evolve(GOOD, request_id=""), "request_id"),
        (attrs.evolve(GOOD, request_id="a" * (REQUEST_ID_CHARACTERS_MAX + 1)), "request_id"),
        (attrs.evolve(GOOD, principal="a" * (LABEL_CHARACTERS_MAX + 1)), "principal"),
        (attrs.evolve(GOOD, cache_salt="a" * (LABEL_CHARACTERS_MAX + 1)), "cache_salt"),
        (attrs.evolve(GOOD, attempt=-1), "attempt"),
        (attrs.evolve(GOOD, choice=-1), "choice"),
        (attrs.evolve(GOOD, choice=2**31), "choice"),
        (attrs.evolve(GOOD, credit=-1), "credit"),
        (attrs.evolve(GOOD, parent="a" * (REQUEST_ID_CHARACTERS_MAX + 1)), "parent"),
        (attrs.evolve(GOOD, bad_words=[[]]), "bad_words"),
        (attrs.evolve(GOOD, bad_words=[[1] * (BAD_WORD_TOKENS_MAX + 1)]), "bad_words"),
        (attrs.evolve(GOOD, bad_words=[[10]]), "bad_words"),
        (attrs.evolve(GOOD, bad_words=[[1]] * (BAD_WORD_SPELLINGS_MAX + 1)), "bad_words"),
        (attrs.evolve(GOOD, bad_words=[[i] for i in range(10)]), "min_tokens"),
        (attrs.evolve(GOOD, sampling=SamplingParams(seed=0, logprobs=21)), "logprobs"),
        (attrs.evolve(GOOD, sampling=SamplingParams(seed=0, logit_bias={10: 1})), "logit_bias"),
        (
            attrs.evolve(
                GOOD, bad_words=[[1]], sampling=SamplingParams(seed=0, allowed_token_ids=[1])
            ),
            "allowed_token_ids",
        ),
        (
            attrs.evolve(
                GOOD, sampling=SamplingParams(seed=0, allowed_token_ids=[0, 9], min_tokens=1)
            ),
            "allowed_token_ids",
        ),
        (attrs.evolve(GOOD, prompt_token_ids=[]), "prompt"),
        (attrs.evolve(GOOD, prompt_token_ids=[1, -1]), "prompt"),
        (attrs.evolve(GOOD, prompt_token_ids=[1, 10]), "prompt"),
        (attrs.evolve(GOOD, output_token_ids=[10]), "output_token_ids"),
        (attrs.evolve(GOOD, eos_token_ids=[10]), "eos_token_ids"),
        (attrs.evolve(GOOD, sampling=sampling((10,))), "stop_token_ids"),
        (attrs.evolve(GOOD, sampling=sampling(seed=None)), "seed"),
        (attrs.evolve(GOOD, sampling=sampling(tuple(ALL_IDS))), "min_tokens"),
        (attrs.evolve(GOOD, eos_token_ids=ALL_IDS), "min_tokens"),
    ],
)
def test_bad_request_names_its_field(changed: AddRequest, parameter: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_request(changed, LIMITS)
    assert caught.value.parameter == parameter


def test_stopping_at_everything_is_fine_without_min_tokens() -> None:
    everything = sampling(tuple(ALL_IDS), min_tokens=0)
    check_request(attrs.evolve(GOOD, sampling=everything), LIMITS)


def test_prompt_must_leave_room_for_one_token() -> None:
    with pytest.raises(PromptTooLong) as caught:
        check_request(attrs.evolve(GOOD, prompt_token_ids=[1] * 8), LIMITS)
    assert (caught.value.prompt_tokens, caught.value.max_model_len) == (8, 8)
