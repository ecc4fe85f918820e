"""A draft becomes the step that was meant, and counts what is in flight."""

import attrs

from triolet.engine.core.request import make_request
from triolet.engine.core.step_draft import StepDraft
from triolet.engine.step_messages import RowEmbeds
from triolet.tests.engine.core.driver import add_request
from triolet.tests.engine.core.grammars import CountingGrammar
from triolet.transports.array import Array


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


def test_embeddings_come_with_the_prompt_tokens_that_are_computed() -> None:
    data = bytes(range(24))
    add = attrs.evolve(
        add_request("a", prompt=[0, 0, 0], output=[5]),
        prompt_embeds=Array("float32", (3, 2), data),
    )
    request = make_request("f0", add, arrival=1, max_model_len=20)
    request.row = 3
    draft = StepDraft(budget=8)
    draft.begin_row(request)
    draft.compute(request, 2)
    step = draft.finish(1).step
    assert step.new[0].is_embedded
    assert step.embeds == [RowEmbeds(3, "float32", data[:16])]
    draft = StepDraft(budget=8)
    draft.compute(request, 2)
    assert draft.finish(2).step.embeds == [RowEmbeds(3, "float32", data[16:])]
    draft = StepDraft(budget=8)
    draft.compute(request, 1)
    assert draft.finish(3).step.embeds == []
