"""A draft becomes the step that was meant, and counts what is in flight."""

from triolet.engine.core.request import make_request
from triolet.engine.core.step_draft import StepDraft
from triolet.tests.engine.core.driver import add_request
from triolet.tests.engine.core.grammars import CountingGrammar


def test_a_row_samples_when_nothing_is_left_to_compute() -> None:
    whole = make_request("f0", add_request("a", prompt=3), arrival=1, max_model_len=20)
    part = make_request("f0", add_request("b", prompt=3), arrival=2, max_model_len=20)
    whole.row, part.row = 4, 2
    whole.grammar = part.grammar = CountingGrammar([{1}], 9, 50)
    draft = StepDraft(budget=8)
    draft.compute(whole, 3)
    draft.compute(part, 2)
    assert draft.budget == 3
    scheduled = draft.finish(7)
    step = scheduled.step
    assert (step.number, step.rows, step.token_counts) == (7, [4, 2], [3, 2])
    assert (step.samples, step.masked) == ([True, False], [4])
    assert (scheduled.sampling, scheduled.sampling_rows) == ([whole], [4])
    assert (whole.scheduled_tokens, whole.total_tokens) == (3, 4)
    assert (part.scheduled_tokens, part.total_tokens) == (2, 3)
    assert whole.in_flight


def test_when_all_sample_their_rows_are_the_steps() -> None:
    request = make_request("f0", add_request("a", prompt=3), arrival=1, max_model_len=20)
    draft = StepDraft(budget=8)
    draft.compute(request, 3)
    scheduled = draft.finish(1)
    assert scheduled.sampling_rows is scheduled.step.rows
