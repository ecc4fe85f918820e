"""Steps through the real model: chunks, neighbours, reused rows and blocks, masks."""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from triolet.engine.step_messages import Mask, NewRow, RowSampling, Step
from triolet.engine.worker.input_batch import StepInconsistent
from triolet.engine.worker.model_runner import ModelRunner

from ..model.tiny_models import load_dummy, random_tokens

PROMPT = random_tokens(40, seed=4)


def sampling(seed: int = 3, **changes: Any) -> RowSampling:
    values = {"temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_p": 0.0}
    return RowSampling(**{**values, "seed": seed, **changes})


def no_mask() -> Mask:
    raise AssertionError("no row is masked")


@pytest.fixture
def make_runner(tmp_path: pathlib.Path) -> Callable[[], ModelRunner]:
    model = load_dummy(tmp_path)
    return lambda: ModelRunner.of(model, rows=4, blocks=40, block_tokens=16, length=128)


def new_row(row: int, tokens: list[int], block_ids: list[int], **changes: Any) -> NewRow:
    values: dict[str, Any] = {
        "prompt_tokens": len(tokens),
        "computed_tokens": 0,
        "sampling": sampling(),
    }
    return NewRow(row=row, token_ids=tokens, block_ids=block_ids, **{**values, **changes})


def decode(runner: ModelRunner, row: int, count: int, first: int = 100) -> list[int]:
    tokens = []
    for number in range(first, first + count):
        step = Step(number=number, rows=[row], token_counts=[1], samples=[True])
        rows, sampled = runner.run(step, no_mask)
        assert rows == [row]
        tokens += sampled
    return tokens


def alone(runner: ModelRunner, count: int) -> list[int]:
    """The undisturbed stream of PROMPT: whole prompt in one step, then decodes."""
    step = Step(
        number=1,
        new=[new_row(0, PROMPT, [0, 1, 2, 3, 4])],
        rows=[0],
        token_counts=[len(PROMPT)],
        samples=[True],
    )
    return runner.run(step, no_mask)[1] + decode(runner, 0, count - 1)


def test_a_stream_does_not_depend_on_chunks_neighbours_or_blocks(
    make_runner: Callable[[], ModelRunner],
) -> None:
    expected = alone(make_runner(), 24)
    assert len(set(expected)) > 8
    runner = make_runner()
    other = new_row(3, random_tokens(60, 8), [9, 8, 7, 6, 5], sampling=sampling(9))
    runner.run(Step(number=1, new=[other], rows=[3], token_counts=[50], samples=[False]), no_mask)
    mine = new_row(1, PROMPT, [20, 31, 12])
    step = Step(number=2, new=[mine], rows=[3, 1], token_counts=[10, 33], samples=[True, False])
    assert runner.run(step, no_mask)[0] == [3]
    step = Step(number=3, rows=[1, 3], token_counts=[7, 1], samples=[True, True])
    tokens = runner.run(step, no_mask)[1][:1]
    step = Step(number=4, grown=[(1, [0, 39])], rows=[], token_counts=[], samples=[])
    assert runner.run(step, no_mask) == ([], [])
    for number in range(5, 28):
        step = Step(number=number, rows=[3, 1], token_counts=[1, 1], samples=[True, True])
        if number > 15:  # the neighbour is gone
            step = Step(number=number, finished=[3] if number == 16 else [], rows=[1],
                        token_counts=[1], samples=[True])  # fmt: skip
        tokens.append(runner.run(step, no_mask)[1][-1])
    assert tokens == expected


def test_a_replayed_row_continues_the_stream(make_runner: Callable[[], ModelRunner]) -> None:
    expected = alone(make_runner(), 20)
    runner = make_runner()
    resumed = new_row(2, PROMPT + expected[:9], [5, 6, 7, 8, 9], prompt_tokens=len(PROMPT))
    step = Step(number=1, new=[resumed], rows=[2], token_counts=[len(PROMPT) + 9], samples=[True])
    tokens = runner.run(step, no_mask)[1] + decode(runner, 2, 10)
    assert tokens == expected[9:]


def test_computed_blocks_are_read_by_another_row(make_runner: Callable[[], ModelRunner]) -> None:
    runner = make_runner()
    expected = alone(runner, 5)
    shared = new_row(1, PROMPT, [0, 1, 30, 31], computed_tokens=32)
    step = Step(number=1, new=[shared], rows=[1], token_counts=[8], samples=[True])
    assert runner.run(step, no_mask)[1] + decode(runner, 1, 4) == expected


def test_a_mask_is_awaited_and_obeyed(make_runner: Callable[[], ModelRunner]) -> None:
    runner = make_runner()
    rows = [new_row(row, PROMPT, [row * 5 + i for i in range(5)]) for row in range(2)]
    words = bytearray(4 * 4)
    words[11] = 0b100  # token 90 alone
    step = Step(
        number=7,
        new=rows,
        rows=[0, 1],
        token_counts=[40, 40],
        samples=[True, True],
        masked=[1],
    )
    tokens = runner.run(step, lambda: Mask(7, bytes(words)))[1]
    assert tokens[1] == 90
    assert tokens[0] == alone(make_runner(), 1)[0]


def test_a_refused_step_changes_nothing(make_runner: Callable[[], ModelRunner]) -> None:
    runner = make_runner()
    expected = alone(make_runner(), 12)
    tokens = alone(runner, 6)
    with pytest.raises(StepInconsistent):
        runner.run(Step(number=5, rows=[3], token_counts=[1], samples=[True]), no_mask)
    assert tokens + decode(runner, 0, 6) == expected


def test_a_row_beyond_its_table_is_refused(make_runner: Callable[[], ModelRunner]) -> None:
    with pytest.raises(ValueError, match="more than a sequence may"):
        make_runner().run(Step(number=1, new=[new_row(0, [1], list(range(9)))]), no_mask)
