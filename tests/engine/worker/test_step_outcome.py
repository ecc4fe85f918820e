"""What a step found, as its result: rows that fail are told apart."""

from triolet.engine.step_messages import RowLogprobs, StepResult
from triolet.engine.worker.step_outcome import StepOutcome

ROWS = [4, 2, 7]


def logprobs(row: int) -> RowLogprobs:
    return RowLogprobs(row=row, first=0, width=0, token_ids=b"", logprobs=b"", ranks=b"")


def test_all_rows_sampled() -> None:
    outcome = StepOutcome()
    outcome.logprobs.append(logprobs(2))
    assert outcome.result(9, ROWS, [40, 20, 70]) == StepResult(
        9, [4, 2, 7], [40, 20, 70], logprobs=[logprobs(2)]
    )


def test_of_a_failed_row_nothing_else_is_told() -> None:
    outcome = StepOutcome()
    outcome.logprobs += [logprobs(2), logprobs(7), logprobs(5)]
    outcome.fail(2, "first")
    outcome.fail(2, "second")
    outcome.fail(5, "told when it is to sample")
    assert outcome.result(9, ROWS, [40, 20, 70]) == StepResult(
        9,
        [4, 7],
        [40, 70],
        logprobs=[logprobs(7)],
        failed_rows=[(2, "first")],
    )
