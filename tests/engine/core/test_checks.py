"""What an ADD must be, each refusal with its field; and what a result must be."""

import math
from typing import Any

import attrs
import pytest

from triolet.engine.core.checks import (
    BAD_WORD_SPELLINGS_MAX,
    BAD_WORD_TOKENS_MAX,
    FAILED,
    REQUEST_ID_CHARACTERS_MAX,
    RequestLimits,
    UnexpectedResult,
    check_request,
    match_logprobs,
    match_result,
)
from triolet.engine.core.request import Request
from triolet.engine.core.step_builder import ScheduledStep
from triolet.engine.embeddings import EmbeddingLimits
from triolet.engine.errors import InvalidParameter, PromptTooLong
from triolet.engine.messages import AddRequest
from triolet.engine.request_options import LABEL_CHARACTERS_MAX, MERGE_S_MAX, MERGE_S_MIN
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import RowLogprobs, Step, StepResult
from triolet.tests.engine.core.driver import new_request
from triolet.transports.array import Array

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
EMBEDDED = attrs.evolve(
    GOOD, prompt_token_ids=[0, 0], prompt_embeds=Array("float32", (2, 4), bytes(32))
)
EMBEDDING_LIMITS = attrs.evolve(LIMITS, embeddings=EmbeddingLimits(4, 8))
ALL_IDS = list(range(10))


def sampling(
    stop_token_ids: tuple[int, ...] = (), *, seed: int | None = 0, min_tokens: int = 2
) -> SamplingParams:
    return SamplingParams(seed=seed, min_tokens=min_tokens, stop_token_ids=stop_token_ids)


def test_good_request_passes() -> None:
    check_request(GOOD, LIMITS)
    check_request(attrs.evolve(GOOD, prompt_token_ids=[1] * 7), LIMITS)
    check_request(attrs.evolve(GOOD, output_token_ids=[1] * 50), LIMITS)
    check_request(attrs.evolve(GOOD, request_id="a" * REQUEST_ID_CHARACTERS_MAX), LIMITS)
    for merge_s in (0.0, MERGE_S_MIN, MERGE_S_MAX):
        check_request(attrs.evolve(GOOD, merge_s=merge_s), LIMITS)


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
        (attrs.evolve(GOOD, merge_s=-1.0), "merge_s"),
        (attrs.evolve(GOOD, merge_s=math.nan), "merge_s"),
        (attrs.evolve(GOOD, merge_s=1e-320), "merge_s"),
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_token_ids": [0, 1]}, "prompt_embeds must not be together with token ids"),
        ({"prompt_token_ids": [0]}, "prompt_embeds must have the shape 1 × 4 here, not 2 × 4"),
        (
            {"sampling": SamplingParams(seed=0, prompt_logprobs=1)},
            "prompt_logprobs must not be together with prompt_embeds",
        ),
        (
            {"prompt_embeds": Array("int8", (2, 4), bytes(8))},
            "prompt_embeds must be float32 or bfloat16, not int8",
        ),
    ],
)
def test_embeddings_that_cannot_be_computed_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    check_request(EMBEDDED, EMBEDDING_LIMITS)
    with pytest.raises(InvalidParameter) as caught:
        check_request(attrs.evolve(EMBEDDED, **changes), EMBEDDING_LIMITS)
    assert str(caught.value) == message


def test_an_engine_that_knows_no_hidden_size_takes_no_embeddings() -> None:
    with pytest.raises(InvalidParameter, match="prompt_embeds is not served with this model"):
        check_request(EMBEDDED, LIMITS)


def make(row: int) -> Request:
    request = new_request(f"r{row}", arrival=row)
    request.row = row
    return request


REQUESTS = [make(4), make(2), make(7)]
SCHEDULED = ScheduledStep(
    Step(number=3, rows=[4, 2, 7], token_counts=[1, 5, 1], samples=[True, False, True]),
    REQUESTS,
    [REQUESTS[0], REQUESTS[2]],
)


@pytest.mark.parametrize(
    "result", [StepResult(3, [4, 7], [10, 11]), StepResult(3, [7, 4], [11, 10])]
)
def test_tokens_come_in_the_order_of_the_requests(result: StepResult) -> None:
    assert match_result(SCHEDULED, result, vocab_size=12) == [10, 11]


def test_a_row_that_failed_has_no_token() -> None:
    result = StepResult(3, [7], [11], failed_rows=[(4, "no numbers")])
    assert match_result(SCHEDULED, result, vocab_size=12) == [FAILED, 11]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (StepResult(2, [4, 7], [10, 11]), "no such step"),
        (StepResult(4, [4, 7], [10, 11]), "no such step"),
        (StepResult(3, [4, 7], [10]), "differ in number"),
        (StepResult(3, [4], [10]), "rows"),
        (StepResult(3, [4, 2, 7], [10, 11, 1]), "rows"),
        (StepResult(3, [4, 4], [10, 11]), "rows"),
        (StepResult(3, [4], [10], failed_rows=[(2, "")]), "rows"),
        (StepResult(3, [4, 7], [10, 11], failed_rows=[(7, "")]), "rows"),
        (StepResult(3, [4, 7], [10, 12]), "vocabulary"),
        (StepResult(3, [4, 7], [-1, 11]), "vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused(result: StepResult, reason: str) -> None:
    with pytest.raises(UnexpectedResult, match=reason):
        match_result(SCHEDULED, result, vocab_size=12)


def test_no_step_in_flight() -> None:
    with pytest.raises(UnexpectedResult, match="step 3: no such step"):
        match_result(None, StepResult(3, [], []), vocab_size=12)


def test_step_that_samples_nothing() -> None:
    scheduled = ScheduledStep(Step(number=1, rows=[0]), [REQUESTS[0]], [])
    assert match_result(scheduled, StepResult(1, [], []), vocab_size=12) == []


ARRAYS = b"1234"


def arrays(row: int, **values: object) -> RowLogprobs:
    given = {"first": 2, "width": 1, "token_ids": ARRAYS, "logprobs": ARRAYS, "ranks": ARRAYS}
    return RowLogprobs(row=row, **{**given, **values})  # type: ignore[arg-type]


def test_logprobs_are_of_the_request_that_has_the_row() -> None:
    result = StepResult(3, [4, 7], [1, 2], logprobs=[arrays(2), arrays(4)])
    assert [request.row for request, _ in match_logprobs(SCHEDULED, result)] == [2, 4]
    assert match_logprobs(SCHEDULED, StepResult(3, [4, 7], [1, 2])) == []


@pytest.mark.parametrize(
    "wrong",
    [
        arrays(5),
        arrays(4, ranks=b"12345"),
        arrays(4, token_ids=b""),
        arrays(4, logprobs=b"12345678"),
        arrays(4, width=2),
    ],
)
def test_logprobs_that_do_not_fit_end_the_engine(wrong: RowLogprobs) -> None:
    with pytest.raises(UnexpectedResult, match="logprobs of row"):
        match_logprobs(SCHEDULED, StepResult(3, [4, 7], [1, 2], logprobs=[wrong]))
