"""A built step is the one that was meant, and counts what is in flight; rows come and go."""

import pytest

from triolet.engine.core.step_builder import RowPool, StepBuilder
from triolet.engine.step_messages import RowEmbeds
from triolet.tests.engine.core.driver import CountingGrammar, new_request
from triolet.transports.array import Array


def test_a_row_samples_when_nothing_is_left_to_compute() -> None:
    whole = new_request("a", prompt=3)
    part = new_request("b", prompt=3)
    whole.row, part.row = 4, 2
    whole.grammar = part.grammar = CountingGrammar([{1}], 9, 50)
    builder = StepBuilder(budget=8)
    builder.compute(whole, 3)
    builder.compute(part, 2)
    assert builder.budget == 3
    scheduled = builder.build(7)
    step = scheduled.step
    assert (step.number, step.rows, step.token_counts) == (7, [4, 2], [3, 2])
    assert (step.samples, step.masked) == ([True, False], [4])
    assert (scheduled.sampling, scheduled.sampling_rows) == ([whole], [4])
    assert (whole.scheduled_tokens, whole.total_tokens) == (3, 4)
    assert (part.scheduled_tokens, part.total_tokens) == (2, 3)
    assert whole.in_flight


def test_when_all_sample_their_rows_are_the_steps() -> None:
    request = new_request("a", prompt=3)
    builder = StepBuilder(budget=8)
    builder.compute(request, 3)
    scheduled = builder.build(1)
    assert scheduled.sampling_rows is scheduled.step.rows


def test_embeddings_come_with_the_prompt_tokens_that_are_computed() -> None:
    data = bytes(range(24))
    embeds = Array("float32", (3, 2), data)
    request = new_request("a", prompt=3, output_token_ids=[5], prompt_embeds=embeds)
    request.row = 3
    builder = StepBuilder(budget=8)
    builder.begin_row(request)
    builder.compute(request, 2)
    step = builder.build(1).step
    assert step.new[0].is_embedded
    assert step.embeds == [RowEmbeds(3, "float32", data[:16])]
    builder = StepBuilder(budget=8)
    builder.compute(request, 2)
    assert builder.build(2).step.embeds == [RowEmbeds(3, "float32", data[16:])]
    builder = StepBuilder(budget=8)
    builder.compute(request, 1)
    assert builder.build(3).step.embeds == []


def test_smallest_free_row_is_taken() -> None:
    pool = RowPool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    pool.release(2)
    pool.release(0)
    assert pool.free_released() == [2, 0]
    assert pool.take() == 0
    pool.check_invariants([0, 1])


def test_row_is_not_free_before_it_was_named() -> None:
    pool = RowPool(1)
    row = pool.take()
    pool.release(row)
    pool.check_invariants([])
    with pytest.raises(IndexError):
        pool.take()
    assert pool.free_released() == [row]
    assert pool.free_released() == []
    assert pool.take() == row


def test_a_row_that_is_not_taken_cannot_be_released() -> None:
    with pytest.raises(KeyError):
        RowPool(1).release(0)


def test_lost_row_fails_the_invariants() -> None:
    pool = RowPool(2)
    pool.take()
    with pytest.raises(AssertionError):
        pool.check_invariants([])
