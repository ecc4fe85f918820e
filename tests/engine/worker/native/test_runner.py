"""Steps through the kernels: chunks, neighbours, reused rows and blocks, logprobs of prompts."""

import functools
import pathlib
import struct
from collections.abc import Callable

import attrs
import numpy
import pytest

from triolet.engine.kernels.library import native_fault
from triolet.engine.step_messages import Mask, RowLogprobs, Step
from triolet.engine.worker.input_batch import StepInconsistent
from triolet.engine.worker.native.runner import NativeRunner

from ...kernels.small_models import BLOCKS, ROWS, load_native
from ...model.tiny_models import random_tokens, write_config
from ..torch.test_runner import PROMPT, new_row, no_mask, sampling

pytestmark = pytest.mark.skipif(bool(native_fault()), reason="no compiler, no kernels")
MakeRunner = Callable[[], NativeRunner]


@pytest.fixture
def make_runner(tmp_path: pathlib.Path) -> MakeRunner:
    folder = write_config(tmp_path)
    return lambda: NativeRunner.of(
        load_native(folder, dummy=True), rows=ROWS, blocks=BLOCKS, block_tokens=16, length=128
    )


def decode(runner: NativeRunner, row: int, count: int) -> list[int]:
    tokens = []
    for number in range(count):
        step = Step(number=number, rows=[row], token_counts=[1], samples=[True])
        tokens += runner.run(step, no_mask).token_ids
    return tokens


def test_a_stream_does_not_depend_on_chunks_neighbours_or_blocks(make_runner: MakeRunner) -> None:
    alone = make_runner()
    mine = new_row(0, PROMPT, [0, 1, 2, 3, 4])
    step = Step(number=1, new=[mine], rows=[0], token_counts=[len(PROMPT)], samples=[True])
    expected = alone.run(step, no_mask).token_ids + decode(alone, 0, 23)
    assert len(set(expected)) > 8

    runner = make_runner()
    other = new_row(3, random_tokens(60, 8), [9, 8, 7, 6, 5], sampling=sampling(9))
    runner.run(Step(number=1, new=[other], rows=[3], token_counts=[50], samples=[False]), no_mask)
    mine = new_row(1, PROMPT, [20, 31, 12])
    step = Step(number=2, new=[mine], rows=[3, 1], token_counts=[10, 33], samples=[True, False])
    assert runner.run(step, no_mask).rows == [3]
    step = Step(number=3, rows=[1, 3], token_counts=[7, 1], samples=[True, True])
    tokens = runner.run(step, no_mask).token_ids[:1]
    runner.run(Step(number=4, finished=[3], grown=[(1, [21, 22]), (1, [39])]), no_mask)
    assert tokens + decode(runner, 1, 23) == expected


def test_what_contradicts_or_outgrows_is_refused(make_runner: MakeRunner) -> None:
    runner = make_runner()
    with pytest.raises(StepInconsistent):
        runner.run(Step(number=1, rows=[0], token_counts=[1], samples=[True]), no_mask)
    long = new_row(0, PROMPT, list(range(9)))
    with pytest.raises(ValueError, match="9 blocks, more than a sequence may"):
        runner.run(Step(number=2, new=[long]), no_mask)


def test_prompts_are_scored_in_slices(make_runner: MakeRunner) -> None:
    """As many logits at once as there is room for; the tokens' logprobs are the same."""

    def scored(logit_rows: int) -> list[RowLogprobs]:
        runner = make_runner()
        model = runner._model
        model._logits = model._logits[:logit_rows]
        asking = new_row(
            0, PROMPT, [0, 1, 2], sampling=sampling(prompt_logprobs=1, temperature=0.0)
        )
        step = Step(number=1, new=[asking], rows=[0], token_counts=[40], samples=[True])
        result = runner.run(step, no_mask)
        assert len(result.token_ids) == 1
        return result.logprobs

    [whole] = scored(64)
    assert (whole.first, whole.width) == (1, 2)
    ids = struct.unpack(f"<{2 * 39}i", whole.token_ids)
    assert list(ids[::2]) == PROMPT[1:]
    parts = scored(10)
    assert [part.first for part in parts] == [1, 11, 21, 31]
    assert b"".join(part.logprobs for part in parts) == whole.logprobs


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


def test_what_is_no_number_in_a_block_harms_nobody_who_has_it_next(
    make_runner: MakeRunner,
) -> None:
    def streams(left_behind: int) -> list[list[int]]:
        runner = make_runner()
        runner._model._cache.view(numpy.uint16)[:] = left_behind
        rows = [new_row(0, PROMPT, [0, 1, 2]), new_row(1, PROMPT[:3], [3, 4])]
        step = Step(number=1, new=rows, rows=[0, 1], token_counts=[40, 3], samples=[True, True])
        results = [runner.run(step, no_mask)]
        for number in range(2, 9):
            step = Step(number=number, rows=[0, 1], token_counts=[1, 1], samples=[True, True])
            results.append(runner.run(step, no_mask))
        assert not any(result.failed_rows for result in results)
        return [result.token_ids for result in results]

    no_number, infinity = 0x7FC0, 0x7F80  # as bfloat16
    assert streams(no_number) == streams(infinity) == streams(0)
