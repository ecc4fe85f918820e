"""The checking worker notices what it is there to notice."""

import pytest

from triolet.engine.step_messages import NewRow, RowSampling, Step
from triolet.fuzz.doubles.checking_worker import (
    CheckingWorker,
    expected_output,
    fingerprint_of,
    sample_token,
)

VOCAB = 50
SAMPLING = RowSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
PROMPT = [1, 2, 3]


def make() -> CheckingWorker:
    return CheckingWorker(kv_blocks=4, block_tokens=2, rows=2, vocab_size=VOCAB)


def new_row(row: int = 0, *, computed: int = 0, blocks: tuple[int, ...] = (0, 1)) -> NewRow:
    return NewRow(
        row=row,
        token_ids=PROMPT,
        prompt_tokens=3,
        computed_tokens=computed,
        block_ids=list(blocks),
        sampling=SAMPLING,
    )


def step(
    number: int,
    counts: dict[int, int],
    *,
    samples: bool = True,
    new: tuple[NewRow, ...] = (),
    grown: tuple[tuple[int, list[int]], ...] = (),
    finished: tuple[int, ...] = (),
) -> Step:
    return Step(
        number=number,
        finished=list(finished),
        new=list(new),
        grown=list(grown),
        rows=list(counts),
        token_counts=list(counts.values()),
        samples=[samples] * len(counts),
    )


def test_tokens_do_not_depend_on_chunks_or_resumption() -> None:
    worker = make()
    assert worker.execute(step(1, {0: 2}, samples=False, new=(new_row(),))).token_ids == []
    first = worker.execute(step(2, {0: 1})).token_ids
    second = worker.execute(step(3, {0: 1})).token_ids
    assert first + second == expected_output(PROMPT, SAMPLING, vocab_size=VOCAB, count=2)
    resumed = NewRow(
        row=1,
        token_ids=PROMPT + first,
        prompt_tokens=3,
        computed_tokens=0,
        block_ids=[3, 0],
        sampling=SAMPLING,
    )
    assert worker.execute(step(4, {1: 4}, new=(resumed,), finished=(0,))).token_ids == second


def test_seed_and_minimum_change_the_token() -> None:
    context = fingerprint_of(PROMPT)
    token_id = sample_token(context, 0, SAMPLING, VOCAB)
    held_back = RowSampling(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=3,
        min_tokens=1,
        suppressed_until_min=[token_id],
    )
    assert sample_token(context, 0, held_back, VOCAB) != token_id
    assert sample_token(context, 1, held_back, VOCAB) == token_id


def test_a_prefix_must_have_been_computed() -> None:
    with pytest.raises(AssertionError, match="never computed"):
        make().execute(step(1, {0: 1}, new=(new_row(computed=2),)))


def test_computed_prefix_may_be_shared_and_not_written() -> None:
    worker = make()
    worker.execute(step(1, {0: 3}, new=(new_row(),)))
    sharer = new_row(1, computed=2, blocks=(0, 2))
    token_ids = worker.execute(step(2, {1: 1}, new=(sharer,))).token_ids
    assert token_ids == expected_output(PROMPT, SAMPLING, vocab_size=VOCAB, count=1)
    assert worker.shared_most == 2
    worker = make()
    worker.execute(step(1, {0: 3}, new=(new_row(),)))
    with pytest.raises(AssertionError, match="a block that grows is shared"):
        worker.execute(step(2, {1: 3}, new=(new_row(1, blocks=(0, 2)),)))


def test_block_in_two_tables() -> None:
    worker = make()
    worker.execute(step(1, {0: 3}, new=(new_row(),)))
    with pytest.raises(AssertionError, match="two tables"):
        worker.execute(step(2, {1: 3}, new=(new_row(1, blocks=(1, 2)),)))


@pytest.mark.parametrize(
    "wrong",
    [
        step(3, {0: 1}),  # a step is missing
        step(2, {}),  # nothing to compute
        step(2, {0: 2}),  # more tokens than there are
        step(2, {0: 1}, samples=False),  # it does sample
        step(2, {0: 1}, new=(new_row(),)),  # the row is in use
        step(2, {0: 1}, new=(new_row(2, blocks=(2, 3)),)),  # no such row
        step(2, {0: 1}, grown=((0, []),)),  # growth by nothing
        step(2, {0: 1}, grown=((0, [4]),)),  # no such block
    ],
)
def test_step_that_no_worker_could_compute(wrong: Step) -> None:
    worker = make()
    worker.execute(step(1, {0: 3}, new=(new_row(),)))
    with pytest.raises(AssertionError):
        worker.execute(wrong)


def test_kv_of_another_request() -> None:
    worker = make()
    worker.execute(step(1, {0: 3}, new=(new_row(),)))
    worker._kv[0, 1] += 1
    with pytest.raises(AssertionError, match="another request"):
        worker.execute(step(2, {0: 1}))
