"""Steps through real models, by torch and by the kernels: chunks, neighbours, blocks, masks."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from triolet.engine.model.decoder import Decoder
from triolet.engine.step_messages import Mask, NewRow, RowLogprobs, RowSampling, Step, StepResult
from triolet.engine.worker.input_batch import StepInconsistent
from triolet.engine.worker.native.runner import NativeRunner
from triolet.engine.worker.torch import runner as model_runner
from triolet.engine.worker.torch.runner import ModelRunner

from .. import steps
from ..gpu import GPU_MARKS
from ..kernels.small_models import load_native, needs_kernels
from ..model.tiny_models import CPU, load_dummy, random_tokens, write_config
from ..steps import compute, no_mask

PROMPT = random_tokens(40, seed=4)


def sampling(seed: int = 3, **changes: Any) -> RowSampling:
    return steps.sampling(**{"temperature": 0.8, "top_p": 0.95, "seed": seed, **changes})


Runner = ModelRunner | NativeRunner
MakeRunner = Callable[[], Runner]
SIZES: dict[str, Any] = {"rows": 4, "blocks": 40, "block_tokens": 16, "length": 128}


GPU = torch.device("cuda")
DEVICES = {"torch": CPU, "gpu": GPU}
KINDS = [
    "torch",
    pytest.param("gpu", marks=GPU_MARKS),
    pytest.param("native", marks=needs_kernels),
]


@pytest.fixture(params=KINDS)
def make_runner(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> MakeRunner:
    if request.param in DEVICES:
        model = load_dummy(tmp_path, device=DEVICES[request.param])
        return lambda: ModelRunner.of(model, **SIZES)
    folder = write_config(tmp_path)
    return lambda: NativeRunner.of(load_native(folder, dummy=True), **SIZES)


def new_row(row: int, tokens: list[int], block_ids: list[int], **changes: Any) -> NewRow:
    return steps.new_row(row, tokens, block_ids, **{"sampling": sampling(), **changes})


def decode(runner: Runner, row: int, count: int, first: int = 100) -> list[int]:
    tokens = []
    for number in range(first, first + count):
        result = runner.run(compute(number, (row, 1, True)), no_mask)
        assert result.rows == [row]
        tokens += result.token_ids
    return tokens


def alone(runner: Runner, count: int, parameters: RowSampling | None = None) -> list[int]:
    """The undisturbed stream of PROMPT: whole prompt in one step, then decodes."""
    new = new_row(0, PROMPT, [0, 1, 2, 3, 4], sampling=parameters or sampling())
    step = compute(1, (0, len(PROMPT), True), new=[new])
    return runner.run(step, no_mask).token_ids + decode(runner, 0, count - 1)


def test_a_stream_does_not_depend_on_chunks_neighbours_or_blocks(
    make_runner: MakeRunner,
) -> None:
    expected = alone(make_runner(), 24)
    assert len(set(expected)) > 8
    runner = make_runner()
    other = new_row(3, random_tokens(60, 8), [9, 8, 7, 6, 5], sampling=sampling(9))
    runner.run(compute(1, (3, 50, False), new=[other]), no_mask)
    mine = new_row(1, PROMPT, [20, 31, 12])
    step = compute(2, (3, 10, True), (1, 33, False), new=[mine])
    assert runner.run(step, no_mask).rows == [3]
    step = compute(3, (1, 7, True), (3, 1, True))
    tokens = runner.run(step, no_mask).token_ids[:1]
    step = Step(number=4, grown=[(1, [0, 39])])
    assert not runner.run(step, no_mask).rows
    for number in range(5, 28):
        step = compute(number, (3, 1, True), (1, 1, True))
        if number > 15:  # the neighbour is gone
            step = compute(number, (1, 1, True), finished=[3] if number == 16 else [])
        tokens.append(runner.run(step, no_mask).token_ids[-1])
    assert tokens == expected


def test_a_mask_is_awaited_and_obeyed(make_runner: MakeRunner) -> None:
    runner = make_runner()
    rows = [new_row(row, PROMPT, [row * 5 + i for i in range(5)]) for row in range(2)]
    words = bytearray(4 * 4)
    words[11] = 0b100  # token 90 alone
    step = compute(7, (0, 40, True), (1, 40, True), new=rows, masked=[1])
    tokens = runner.run(step, lambda: Mask(7, bytes(words))).token_ids
    assert tokens[1] == 90
    assert tokens[0] == alone(make_runner(), 1)[0]


def test_a_refused_step_changes_nothing(make_runner: MakeRunner) -> None:
    runner = make_runner()
    expected = alone(make_runner(), 12)
    tokens = alone(runner, 6)
    with pytest.raises(StepInconsistent):
        runner.run(compute(5, (3, 1, True)), no_mask)
    assert tokens + decode(runner, 0, 6) == expected


def test_a_row_beyond_its_table_is_refused(make_runner: MakeRunner) -> None:
    with pytest.raises(ValueError, match="more than a sequence may"):
        make_runner().run(Step(number=1, new=[new_row(0, [1], list(range(9)))]), no_mask)


def first_step(*rows: NewRow, **changes: Any) -> Step:
    counts = [len(row.token_ids) - row.computed_tokens for row in rows]
    numbers = [row.row for row in rows]
    values = {"number": 1, "token_counts": counts, "samples": [True] * len(rows)}
    return Step(**{**values, "new": list(rows), "rows": numbers, **changes})


def arrays(found: RowLogprobs) -> tuple[list[int], list[float], list[int]]:
    return (
        np.frombuffer(found.token_ids, "<i4").tolist(),
        np.frombuffer(found.logprobs, "<f4").tolist(),
        np.frombuffer(found.ranks, "<i4").tolist(),
    )


def test_penalties_and_bad_words_follow_the_output(make_runner: MakeRunner) -> None:
    greedy = sampling(temperature=0.0)
    free = alone(make_runner(), 1, greedy)
    never = sampling(temperature=0.0, presence_penalty=1000.0)
    tokens = alone(make_runner(), 30, never)
    assert tokens[0] == free[0]
    assert len(set(tokens)) == 30
    avoided = sampling(temperature=0.0, bad_words=[free, [*tokens[:1], tokens[1]]])
    assert free[0] not in alone(make_runner(), 5, avoided)


def test_logprobs_are_of_the_raw_logits(make_runner: MakeRunner) -> None:
    biased = sampling(temperature=0.0, logprobs=2, logit_bias=[(90, 1000.0)])
    result = make_runner().run(first_step(new_row(1, PROMPT, [0, 1, 2], sampling=biased)), no_mask)
    assert result.token_ids == [90]
    (found,) = result.logprobs
    assert (found.row, found.first, found.width) == (1, len(PROMPT), 3)
    ids, values, (rank,) = arrays(found)
    assert ids[1:] == [alone(make_runner(), 1, sampling(temperature=0.0))[0], ids[2]]
    assert ids[0] == 90
    assert values[0] < values[2] <= values[1] < 0
    assert rank > 2


def test_a_prompt_is_scored_alike_whole_and_in_pieces(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = sampling(prompt_logprobs=1)
    row = new_row(1, PROMPT, [0, 1, 2], sampling=scored)
    (whole,) = make_runner().run(first_step(row), no_mask).logprobs
    ids, values, ranks = arrays(whole)
    assert (whole.first, whole.width) == (1, 2)
    assert ids[::2] == PROMPT[1:]
    likeliest = [a == b for a, b in zip(values[::2], values[1::2], strict=True)]
    assert [rank == 1 for rank in ranks] == likeliest

    runner = make_runner()
    if isinstance(runner, NativeRunner):
        runner._model._logits = runner._model._logits[:7]
    else:
        monkeypatch.setattr(model_runner, "PROMPT_LOGITS_MAX", 7 * 101)
    pieces = runner.run(first_step(row, token_counts=[17], samples=[False]), no_mask).logprobs
    assert [piece.first for piece in pieces] == [1, 8, 15]
    pieces += runner.run(compute(2, (1, 23, True)), no_mask).logprobs
    found = [arrays(piece) for piece in pieces]
    for i, expected in enumerate((ids, values, ranks)):
        assert [number for piece in found for number in piece[i]] == expected


def test_a_row_that_may_not_sample_anything_fails_alone(
    make_runner: MakeRunner,
) -> None:
    runner = make_runner()
    rows = [new_row(row, PROMPT, [row * 5 + i for i in range(5)]) for row in range(2)]
    result = runner.run(first_step(*rows, masked=[1]), lambda: Mask(1, bytes(4 * 4)))
    assert result.rows == [0]
    assert result.failed_rows == [(1, "every token is forbidden")]
    # A step that was on its way is computed; what it says of the row is void.
    step = compute(2, (0, 1, True), (1, 1, True))
    tokens = result.token_ids + runner.run(step, no_mask).token_ids[:1]
    step = compute(3, (0, 1, True), finished=[1])
    tokens += runner.run(step, no_mask).token_ids
    assert tokens == alone(make_runner(), 3)


def test_logits_that_are_no_numbers_fail_a_row_when_it_samples(tmp_path: pathlib.Path) -> None:
    model = load_dummy(tmp_path)
    assert isinstance(model, Decoder)
    model._norm._weight.fill_(math.nan)
    runner = ModelRunner.of(model, **SIZES)
    row = new_row(1, PROMPT, [0, 1, 2], sampling=sampling(prompt_logprobs=1))
    first = runner.run(first_step(row, token_counts=[20], samples=[False]), no_mask)
    assert first == StepResult(1, [], [])
    second = runner.run(compute(2, (1, 20, True)), no_mask)
    assert (second.rows, second.logprobs) == ([], [])
    assert second.failed_rows == [(1, "a logit is not a finite number")]


def test_what_is_no_number_in_a_block_harms_no_row_that_has_it_next(
    tmp_path: pathlib.Path, make_runner: MakeRunner
) -> None:
    """Rows of several lengths, so that some are filled up; blocks that grow; a prefix."""

    def streams(kind: str, left_behind: float) -> list[list[int]]:
        runner = make_runner()
        if isinstance(runner, ModelRunner):
            device = runner._model.device
            model = load_dummy(tmp_path, bitwise=kind == "bitwise", device=device)
            runner = ModelRunner.of(model, **SIZES)
            cache = runner._forward.cache
            for memory in (*cache.keys, *cache.values):
                memory.fill_(left_behind)
        else:
            words = np.array([left_behind], np.float32).view(np.uint16)[1:]  # as bfloat16
            runner._model._cache.view(np.uint16)[:] = words
        rows = [new_row(0, PROMPT, [0, 1, 2]), new_row(1, PROMPT[:3], [3]),
                new_row(2, PROMPT[:17], [4, 5])]  # fmt: skip
        results = [runner.run(first_step(*rows), no_mask)]
        for number in range(2, 17):
            grown = {2: [(0, [9])], 14: [(1, [10])], 16: [(2, [11])]}.get(number, [])
            step = compute(number, *[(row, 1, True) for row in range(3)], grown=grown)
            results.append(runner.run(step, no_mask))
        shared = new_row(3, PROMPT, [0, 1, 20], computed_tokens=32)
        results.append(runner.run(first_step(shared), no_mask))
        assert not any(result.failed_rows for result in results)
        return [result.token_ids for result in results]

    for kind in ("bitwise", "plain"):
        assert streams(kind, math.nan) == streams(kind, math.inf) == streams(kind, 0.0)
