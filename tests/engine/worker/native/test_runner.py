"""Streaks of decodes are what single steps are, with everything that a row may ask for."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.step_messages import Mask, RowEmbeds, RowLogprobs, Step
from triolet.engine.worker.input_batch import InputBatch, StepInconsistent
from triolet.engine.worker.native.decode_streak import UNSETTLED_MAX, DecodeStreak, decodes_only
from triolet.engine.worker.native.runner import NativeRunner

from ...kernels.small_models import BLOCKS, ROWS, load_native, needs_kernels
from ...model.tiny_models import write_config
from ...steps import compute
from ...steps import sampling as batch_sampling
from ..test_input_batch import make_batch
from ..test_input_batch import new_row as batch_row
from ..test_runners import PROMPT, new_row, sampling

MakeRunner = Callable[[], NativeRunner]


@pytest.fixture
def make_runner(tmp_path: pathlib.Path) -> MakeRunner:
    folder = write_config(tmp_path)
    return lambda: NativeRunner.of(
        load_native(folder, dummy=True), rows=ROWS, blocks=BLOCKS, block_tokens=16, length=128
    )


@needs_kernels
def test_a_streak_of_decodes_is_what_single_steps_are(make_runner: MakeRunner) -> None:
    """Penalties, forbidden words, logprobs and masks, with and without a neighbour's prompt."""
    asking = sampling(
        4, repetition_penalty=1.5, bad_words=[[5], [7, 8]], min_tokens=4, logprobs=2,
        suppressed_until_min=[9],
    )  # fmt: skip
    vocab = make_runner()._model.config.vocab_size

    def mask(number: int) -> Mask:
        return Mask(number, bytes([0b01010101 << number % 2]) * (-(-vocab // 32) * 4))

    def run(breaks: bool) -> list[tuple[list[int], list[RowLogprobs]]]:
        runner, found = make_runner(), []
        news = [new_row(0, PROMPT, [0, 1, 2, 3, 4], sampling=asking)]
        for number in range(40):
            masked = [0] if number >= 20 else []
            step = Step(number=number, new=news, rows=[0], token_counts=[1], samples=[True],
                        masked=masked)  # fmt: skip
            if number == 0:
                step.token_counts[0] = len(PROMPT)
            if breaks:
                other = new_row(3, PROMPT, [9])
                news, over = [*step.new, other], [3] if number else []
                step = attrs.evolve(step, new=news, finished=over, rows=[0, 3],
                                    token_counts=[*step.token_counts, 2],
                                    samples=[True, False])  # fmt: skip
            result = runner.run(step, functools.partial(mask, number))
            assert (runner._streak is None) is (breaks or number == 0)
            found.append((result.token_ids, result.logprobs))
            news = []
        return found

    assert run(breaks=False) == run(breaks=True)


EMBEDS = RowEmbeds(0, "bfloat16", bytes(8))


def begin(*rows: int) -> tuple[InputBatch, DecodeStreak]:
    """These rows have their prompt of five tokens, of which the last is computed next."""
    batch = make_batch()
    news = [
        batch_row(row, computed_tokens=4, sampling=batch_sampling(repetition_penalty=2.0))
        for row in rows
    ]
    step = compute(1, *((row, 1, True) for row in rows), new=news)
    batch.apply(step)
    return batch, DecodeStreak.of(step, batch)


def decode_step(number: int, *rows: int, **changes: Any) -> Step:
    return attrs.evolve(compute(number, *((row, 1, True) for row in rows)), **changes)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (compute(1, (0, 1, True), (2, 1, True)), True),
        (compute(1, (0, 1, True), (2, 2, True)), False),
        (compute(1, (0, 1, True), (2, 1, False)), False),
        (compute(1), False),
    ],
)
def test_which_steps_decode_only(step: Step, expected: bool) -> None:
    assert decodes_only(step) is expected


def test_it_goes_on_while_the_rows_are_the_same() -> None:
    _, streak = begin(0, 2)
    assert streak.goes_on(decode_step(2, 0, 2))
    assert streak.goes_on(decode_step(2, 0, 2, grown=[(2, [9])]))
    assert not streak.goes_on(decode_step(2, 2, 0))
    assert not streak.goes_on(decode_step(2, 0))
    assert not streak.goes_on(decode_step(2, 0, 2, finished=[1]))
    assert not streak.goes_on(decode_step(2, 0, 2, new=[batch_row(1)]))
    assert not streak.goes_on(compute(2, (0, 1, True), (2, 1, False)))
    assert not streak.goes_on(decode_step(2, 0, 2, embeds=[EMBEDS]))


def test_a_token_whose_embedding_is_given_is_not_decoded() -> None:
    assert not decodes_only(compute(1, (0, 1, True), embeds=[EMBEDS]))


@pytest.mark.parametrize(
    ("grown", "reason"),
    [
        ([], "row 2: its tokens exceed its blocks"),
        ([(0, [9])], "row 2: its tokens exceed its blocks"),
        ([(3, [9])], "grows row 3, which is not held"),
        ([(2, [10])], "names a block beyond 9"),
    ],
)
def test_an_inconsistent_step_changes_nothing(
    grown: list[tuple[int, list[int]]], reason: str
) -> None:
    batch, streak = begin(0, 2)
    for number in range(2, 6):  # two blocks hold eight tokens
        streak.token_ids[:] = 7
        streak.finish_step([7, 7])
        before = batch.rows[2].block_ids.copy()
        if number < 5:
            streak.take_step(
                decode_step(number, 0, 2, grown=[(0, [8])] if number == 2 else []),
                batch,
            )
    with pytest.raises(StepInconsistent, match=reason):
        streak.take_step(decode_step(5, 0, 2, grown=grown), batch)
    assert batch.rows[2].block_ids == before
    streak.check_invariants()


TOKENS = st.integers(0, 99)


@given(st.lists(st.tuples(TOKENS, TOKENS, st.booleans(), st.booleans()), max_size=8))
def test_it_is_what_single_steps_say(tokens: list[tuple[int, int, bool, bool]]) -> None:
    """The same steps, one batch by its streak, the other step by step."""
    batch, streak = begin(0, 2)
    other, _ = begin(0, 2)
    step = decode_step(1, 0, 2)
    for number, (first, second, grows, settles) in enumerate(tokens, 2):
        streak.token_ids[:] = first, second
        streak.finish_step([first, second])
        other.finish_step(step, [first, second])
        streak.check_invariants()
        step = decode_step(number, 0, 2, grown=[(2, [8]), (0, [9, 7])] if grows else [])
        refused = None
        try:
            inputs = other.take_step(step)
        except StepInconsistent as error:
            refused = error
        if refused is not None:
            with pytest.raises(StepInconsistent):
                streak.take_step(step, batch)
            break
        streak.take_step(step, batch)
        streak.check_invariants()
        if settles:
            streak.settle()
            streak.check_invariants()
        assert streak.token_ids.tolist() == inputs.token_ids
        assert streak.begins.tolist() == inputs.positions
        assert streak.outputs.tolist() == [each.position for each in inputs.samplings]
    streak.settle()
    assert {row: attrs.asdict(held) for row, held in batch.rows.items()} == {
        row: attrs.asdict(held) for row, held in other.rows.items()
    }


def test_only_so_much_is_not_settled() -> None:
    batch, streak = begin(0, 2)
    for number in range(2 * UNSETTLED_MAX + 1):
        streak.token_ids[:] = number % 100
        streak.finish_step([number % 100] * 2)
        streak.check_invariants()
    assert len(batch.rows[2].token_ids) == 5 + 2 * UNSETTLED_MAX
