"""Runners take the logits that they are given, each in its token's place."""

import numpy
import pytest

from triolet.engine.kernels.library import native_fault
from triolet.engine.step_messages import NewRow, RowSampling, Step
from triolet.fuzz.doubles.given_logits import GivenRunner, native_runners, torch_runner

GREEDY = RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=1, prompt_logprobs=0)


def check_runner(given: GivenRunner) -> None:
    logits = numpy.zeros((5, 70), numpy.float32)
    logits[[2, 4], [60, 9]] = 1.0  # what the last tokens of two rows say
    logits[3, 7] = 5.0
    new = [
        NewRow(row=row, token_ids=ids, prompt_tokens=len(ids), computed_tokens=0, block_ids=[0],
               sampling=GREEDY)
        for row, ids in enumerate([[1, 2, 3], [6, 7]])
    ]  # fmt: skip
    step = Step(number=4, new=new, rows=[0, 1], token_counts=[3, 2], samples=[True, True])
    result = given.run(step, logits, None)
    assert (result.number, result.token_ids, result.compute_s) == (4, [60, 9], 0.0)
    scored = numpy.frombuffer(result.logprobs[1].logprobs, "<f4")
    assert (result.logprobs[1].row, len(scored)) == (1, 1)
    assert scored[0] > -1.0  # that of token 7, which the first token's logits prefer


def test_torch() -> None:
    check_runner(torch_runner(2, 70))


@pytest.mark.skipif(bool(native_fault()), reason="no compiler, no kernels")
def test_native_on_every_instruction_set() -> None:
    runners = native_runners(2, 70)
    assert runners
    for given in runners:
        check_runner(given)
