"""Rows fail where their seed says, alone, also when they were taken away and came again."""

from typing import Any

import attrs

from triolet.engine.step_messages import NewRow, RowSampling, Step, StepResult, WorkerReady
from triolet.fuzz.doubles.failing_rows import DOOMED, REASON, FailingRows


class Echo:
    """Samples its row's number."""

    def load(self, progress: Any) -> WorkerReady:
        raise NotImplementedError

    def execute(self, step: Step, wait_mask: Any) -> StepResult:
        return StepResult(step.number, step.rows, step.rows, compute_s=0.5)


def new(row: int, seed: int, output: int = 0) -> NewRow:
    sampling = RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
    return NewRow(
        row=row,
        token_ids=[1] * (3 + output),
        prompt_tokens=3,
        computed_tokens=0,
        block_ids=[0],
        sampling=sampling,
    )


def test_a_doomed_row_fails_at_its_token() -> None:
    worker = FailingRows(Echo())
    step = Step(number=1, new=[new(4, 7), new(5, DOOMED + 1)], rows=[4, 5])
    assert worker.execute(step, None) == StepResult(1, [4, 5], [4, 5], compute_s=0.5)
    step = Step(number=2, rows=[4, 5])
    failed = StepResult(2, [4], [4], compute_s=0.5, failed_rows=[(5, REASON)])
    assert worker.execute(step, None) == failed
    step = Step(number=3, rows=[4, 5])
    assert worker.execute(step, None) == attrs.evolve(failed, number=3), "until it is forgotten"
    step = Step(number=4, finished=[5], new=[new(5, 7)], rows=[5])
    assert worker.execute(step, None).rows == [5]


def test_what_it_had_before_counts() -> None:
    worker = FailingRows(Echo())
    step = Step(number=1, new=[new(2, DOOMED + 3, output=3)], rows=[2])
    assert worker.execute(step, None).failed_rows == [(2, REASON)]
