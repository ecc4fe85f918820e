"""A result must fit the step in flight: number, rows, tokens."""

import pytest

from triolet.engine.core.request import Request, make_request
from triolet.engine.core.result_check import FAILED, UnexpectedResult, match_logprobs, match_result
from triolet.engine.core.step_draft import ScheduledStep
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import RowLogprobs, Step, StepResult


def make(row: int) -> Request:
    add = AddRequest(
        request_id=f"r{row}", attempt=1, prompt_token_ids=[1], sampling=SamplingParams(seed=1)
    )
    request = make_request("f0", add, arrival=row, max_model_len=10)
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


def test_logprobs_are_of_whoever_has_the_row() -> None:
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
