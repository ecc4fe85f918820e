"""Rows held by a worker: differences applied, inconsistent steps refused whole."""

import copy
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triolet.engine.step_messages import NewRow, RowEmbeds, Step
from triolet.engine.worker.input_batch import InputBatch, StepInconsistent
from triolet.engine.worker.step_inputs import EmbedSpan, PromptSpan

from .. import steps
from ..steps import compute, sampling


def make_batch() -> InputBatch:
    return InputBatch(rows_max=4, blocks=10, block_tokens=4, vocab_size=100)


def new_row(row: int, **changes: Any) -> NewRow:
    values: dict[str, Any] = {"token_ids": [10, 11, 12, 13, 14], "block_ids": [row, row + 4]}
    return steps.new_row(row, **{**values, **changes})


def test_a_prompt_in_two_chunks_then_decodes() -> None:
    batch = make_batch()
    step = compute(1, (2, 3, False), new=[new_row(2)])
    inputs = batch.take_step(step)
    assert (inputs.token_ids, inputs.positions, inputs.rows) == ([10, 11, 12], [0, 1, 2], [2] * 3)
    assert inputs.samplings == []
    batch.finish_step(step, [])

    step = compute(2, (2, 2, True))
    inputs = batch.take_step(step)
    assert (inputs.token_ids, inputs.positions) == ([13, 14], [3, 4])
    (sampled,) = inputs.samplings
    assert (sampled.row, sampled.token_index, sampled.position) == (2, 1, 0)
    batch.finish_step(step, [77])

    step = compute(3, (2, 1, True))
    inputs = batch.take_step(step)
    assert (inputs.token_ids, inputs.positions) == ([77], [5])
    assert inputs.samplings[0].position == 1


def test_a_resumed_row_counts_its_output_and_what_is_computed() -> None:
    batch = make_batch()
    step = compute(1, (0, 1, True), new=[new_row(0, prompt_tokens=2, computed_tokens=4)])
    inputs = batch.take_step(step)
    assert (inputs.token_ids, inputs.positions) == ([14], [4])
    assert inputs.samplings[0].position == 3


def test_rows_of_one_step_follow_each_other() -> None:
    batch = make_batch()
    step = compute(1, (3, 5, True), (1, 2, False), new=[new_row(1), new_row(3)])
    inputs = batch.take_step(step)
    assert inputs.rows == [3] * 5 + [1] * 2
    assert inputs.positions == [0, 1, 2, 3, 4, 0, 1]
    assert inputs.samplings[0].token_index == 4


def test_a_row_may_be_forgotten_and_taken_in_one_step() -> None:
    batch = make_batch()
    batch.take_step(compute(1, new=[new_row(0)]))
    batch.take_step(compute(2, finished=[0], new=[new_row(0, token_ids=[1], prompt_tokens=1)]))
    assert batch.rows[0].token_ids == [1]


def test_grown_blocks_are_appended() -> None:
    batch = make_batch()
    batch.take_step(compute(1, new=[new_row(0)], grown=[(0, [9])]))
    assert batch.rows[0].block_ids == [0, 4, 9]


def test_tokens_are_counted_where_a_penalty_asks_for_it() -> None:
    penalised = sampling(presence_penalty=0.5)
    batch = make_batch()
    tokens = [10, 11, 11, 12, 11]
    new = new_row(0, token_ids=tokens, prompt_tokens=2, sampling=penalised)
    step = compute(1, (0, 5, True), (1, 5, True), new=[new, new_row(1)])
    batch.take_step(step)
    assert batch.rows[0].seen == {10: 0, 11: 2, 12: 1}
    assert batch.rows[1].seen is None
    batch.finish_step(step, [13, 13])
    batch.check_invariants()
    assert batch.rows[0].seen == {10: 0, 11: 2, 12: 1, 13: 1}


def test_bad_words_forbid_their_last_token_after_the_rest() -> None:
    words = [[7], [11, 12, 8], [10, 9], [12, 12, 5], [12, 6], [10, 11, 12, 4]]
    batch = make_batch()
    new = new_row(0, token_ids=[10, 11, 12], prompt_tokens=1, sampling=sampling(bad_words=words))
    batch.take_step(compute(1, new=[new]))
    assert sorted(batch.rows[0].forbidden()) == [6, 7, 8]
    # What the prompt ends with is not the output.
    batch.take_step(compute(2, finished=[0], new=[attrs.evolve(new, prompt_tokens=2)]))
    assert sorted(batch.rows[0].forbidden()) == [6, 7]
    batch.take_step(compute(3, finished=[0], new=[attrs.evolve(new, prompt_tokens=3)]))
    assert sorted(batch.rows[0].forbidden()) == [7]


def test_tokens_are_suppressed_until_there_are_enough() -> None:
    batch = make_batch()
    late = sampling(min_tokens=1, suppressed_until_min=[4, 5])
    step = compute(1, (0, 5, True), new=[new_row(0, sampling=late)])
    batch.take_step(step)
    assert batch.rows[0].forbidden() == [4, 5]
    batch.finish_step(step, [6])
    assert batch.rows[0].forbidden() == []


def test_a_prompt_is_scored_up_to_its_last_token() -> None:
    batch = make_batch()
    new = new_row(2, prompt_tokens=4, sampling=sampling(prompt_logprobs=3))
    (span,) = batch.take_step(step := compute(1, (2, 2, False), new=[new])).prompt_spans
    assert span == PromptSpan(row=2, token_index=0, first=1, targets=[11, 12], alternatives=3)
    batch.finish_step(step, [])
    other = compute(2, (1, 2, False), (2, 3, True), new=[new_row(1)])
    (span,) = batch.take_step(other).prompt_spans
    assert (span.token_index, span.first, span.targets) == (2, 3, [13])
    batch.finish_step(other, [50])
    assert batch.take_step(compute(3, (2, 1, True))).prompt_spans == []


ROW = bytes(range(1, 9))  # a hidden size of 4, bfloat16


def embedding_batch() -> InputBatch:
    return attrs.evolve(make_batch(), hidden_size=4)


def test_a_prompt_of_embeddings_in_chunks() -> None:
    batch = embedding_batch()
    new = new_row(2, token_ids=[0] * 4 + [14], prompt_tokens=4, is_embedded=True)
    step = compute(
        1, (1, 2, False), (2, 3, False),
        new=[new_row(1), new], embeds=[RowEmbeds(2, "bfloat16", 3 * ROW)],
    )  # fmt: skip
    inputs = batch.take_step(step)
    assert inputs.embeds == [EmbedSpan(2, "bfloat16", 3 * ROW)]
    batch.finish_step(step, [])
    # The last of the prompt, and the output so far, which is looked up.
    step = compute(2, (2, 2, True), embeds=[RowEmbeds(2, "float32", 2 * ROW)])
    inputs = batch.take_step(step)
    assert (inputs.token_ids, inputs.embeds) == ([0, 14], [EmbedSpan(0, "float32", 2 * ROW)])
    batch.finish_step(step, [15])
    assert batch.take_step(compute(3, (2, 1, True))).embeds == []
    batch.check_invariants()
    batch.take_step(compute(4, finished=[2]))
    batch.check_invariants()


def test_of_placeholders_nothing_is_counted() -> None:
    batch = embedding_batch()
    penalised = sampling(repetition_penalty=1.5)
    new = new_row(
        0, token_ids=[0, 0, 7], prompt_tokens=2, sampling=penalised, is_embedded=True
    )  # fmt: skip
    step = compute(1, (0, 3, True), new=[new], embeds=[RowEmbeds(0, "bfloat16", 2 * ROW)])
    batch.take_step(step)
    assert batch.rows[0].seen == {7: 1}
    batch.finish_step(step, [0])
    assert batch.rows[0].seen == {7: 1, 0: 1}
    batch.check_invariants()


@pytest.mark.parametrize(
    "embeds",
    [
        [],
        [RowEmbeds(0, "bfloat16", 2 * ROW), RowEmbeds(0, "bfloat16", 2 * ROW)],
        [RowEmbeds(0, "bfloat16", 2 * ROW), RowEmbeds(1, "bfloat16", 2 * ROW)],
        [RowEmbeds(1, "bfloat16", 2 * ROW)],
        [RowEmbeds(0, "bfloat16", 3 * ROW)],
        [RowEmbeds(0, "float32", 2 * ROW)],
        [RowEmbeds(0, "int64", 2 * ROW)],
    ],
)
def test_embeddings_of_other_tokens_are_refused(embeds: list[RowEmbeds]) -> None:
    batch = embedding_batch()
    new = [new_row(0, is_embedded=True), new_row(1)]
    with pytest.raises(StepInconsistent, match=r"^step 1 "):
        batch.take_step(compute(1, (0, 2, False), (1, 2, False), new=new, embeds=embeds))
    assert not batch.rows
    batch.check_invariants()


def test_without_a_hidden_size_there_are_no_embeddings() -> None:
    step = compute(
        1, (0, 1, False), new=[new_row(0, is_embedded=True)], embeds=[RowEmbeds(0, "bfloat16", b"")]
    )
    with pytest.raises(StepInconsistent, match="bfloat16 is not taken"):
        make_batch().take_step(step)


BAD = {
    "finishes an unknown row": Step(number=2, finished=[1]),
    "takes a held row": Step(number=2, new=[new_row(0)]),
    "takes a row out of range": Step(number=2, new=[new_row(4)]),
    "takes a negative row": Step(number=2, new=[new_row(-1)]),
    "more computed than tokens": Step(number=2, new=[new_row(1, computed_tokens=6)]),
    "more computed than its blocks hold": Step(
        number=2, new=[new_row(1, computed_tokens=5, block_ids=[1])]
    ),
    "no prompt": Step(number=2, new=[new_row(1, prompt_tokens=0)]),
    "more prompt than tokens": Step(number=2, new=[new_row(1, prompt_tokens=6)]),
    "no tokens": Step(number=2, new=[new_row(1, token_ids=[], prompt_tokens=0)]),
    "a token beyond the vocabulary": Step(number=2, new=[new_row(1, token_ids=[100] * 5)]),
    "a negative token": Step(number=2, new=[new_row(1, token_ids=[-1] * 5)]),
    **{
        f"{name} beyond the vocabulary": Step(
            number=2, new=[new_row(1, sampling=sampling(**{name: value}))]
        )
        for name, value in {
            "suppressed_until_min": [100],
            "logit_bias": [(1, 0.5), (100, 0.5)],
            "allowed_token_ids": [-1],
            "bad_words": [[1], [2, 100]],
        }.items()
    },
    "a bad word without tokens": Step(
        number=2, new=[new_row(1, sampling=sampling(bad_words=[[]]))]
    ),
    "a token biased twice": Step(
        number=2, new=[new_row(1, sampling=sampling(logit_bias=[(3, 1.0), (3, 2.0)]))]
    ),
    "a block out of range": Step(number=2, new=[new_row(1, block_ids=[10])]),
    "grows an unknown row": Step(number=2, grown=[(1, [3])]),
    "grows by a block out of range": Step(number=2, grown=[(0, [-1])]),
    "computes an unknown row": compute(2, (1, 1, False)),
    "computes a finished row": compute(2, (0, 1, False), finished=[0]),
    "computes a row twice": compute(2, (0, 1, False), (0, 1, False)),
    "computes nothing": compute(2, (0, 0, False)),
    "computes more than there is": compute(2, (0, 6, False)),
    "samples before the end": compute(2, (0, 4, True)),
    "exceeds its blocks": compute(2, (1, 5, True), new=[new_row(1, block_ids=[1])]),
    "lists of different lengths": Step(number=2, rows=[0], token_counts=[1], samples=[]),
}


@pytest.mark.parametrize("case", list(BAD))
def test_an_inconsistent_step_is_refused_whole(case: str) -> None:
    batch = make_batch()
    batch.take_step(compute(1, new=[new_row(0)]))
    before = copy.deepcopy(batch.rows)
    with pytest.raises(StepInconsistent, match=r"^step 2 "):
        batch.take_step(BAD[case])
    assert {row: attrs.asdict(held) for row, held in batch.rows.items()} == {
        row: attrs.asdict(held) for row, held in before.items()
    }


class BatchMachine(RuleBasedStateMachine):
    """Any steps at all: each is applied or refused, and rows stay possible."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = make_batch()

    @rule(
        finished=st.lists(st.integers(0, 4), max_size=2),
        taken=st.lists(
            st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 9)), max_size=2
        ),
        grown=st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), max_size=2))),
        work=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=3),
    )
    def step(
        self,
        finished: list[int],
        taken: list[tuple[int, int, int]],
        grown: list[tuple[int, list[int]]],
        work: list[tuple[int, int, bool]],
    ) -> None:
        new = [
            new_row(row, token_ids=[5] * tokens, prompt_tokens=1, computed_tokens=computed)
            for row, tokens, computed in taken
        ]
        step = compute(1, *work, finished=finished, new=new, grown=grown)
        try:
            inputs = self.batch.take_step(step)
        except StepInconsistent:
            return
        assert len(inputs.token_ids) == sum(step.token_counts)
        self.batch.finish_step(step, [6] * len(inputs.samplings))

    @invariant()
    def rows_are_possible(self) -> None:
        self.batch.check_invariants()


TestBatchMachine = pytest.mark.slow(BatchMachine.TestCase)
TestBatchMachine.settings = settings(max_examples=30, stateful_step_count=20)
