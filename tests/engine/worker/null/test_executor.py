"""The executor without arithmetic: tokens by hash, waits by order, rows checked as everywhere."""

import pathlib
import struct
from typing import Any

import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.step_messages import Mask, Step
from triolet.engine.worker.input_batch import StepInconsistent
from triolet.engine.worker.null.executor import (
    SPECIAL_IDS,
    NullExecutor,
    null_logprob,
    null_rows,
    null_token,
)

from ...steps import compute, new_row, no_mask, sampling


def load(
    folder: pathlib.Path, rank: int = 0, vocab_size: int = 200, **changes: Any
) -> tuple[NullExecutor, list[float]]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(
        f'{{"vocab_size": {vocab_size}, "max_position_embeddings": 64}}'
    )
    pauses: list[float] = []
    settings = EngineSettings(
        model=str(folder), executor="null", max_num_seqs=8, workers=2, **changes
    )
    executor = NullExecutor(settings, rank, pauses.append)
    executor.load(lambda phase, fraction: None)
    return executor, pauses


def run(executor: NullExecutor, seed: int, tokens: list[int], count: int) -> list[int]:
    """The first `count` tokens after a prompt, one step each."""
    found: list[int] = []
    new = [new_row(3, tokens, [6, 7], sampling=sampling(seed=seed))]
    for number in range(1, count + 1):
        step = compute(number, (3, 1 if found else len(tokens), True), new=[] if found else new)
        result = executor.execute(step, no_mask)
        assert (result.number, result.rows) == (number, [3])
        found += result.token_ids
    return found


def test_tokens_depend_on_seed_position_and_previous_token(tmp_path: pathlib.Path) -> None:
    tokens = run(load(tmp_path)[0], seed=5, tokens=[9, 9], count=20)
    assert run(load(tmp_path)[0], seed=5, tokens=[1, 9], count=20) == tokens
    assert run(load(tmp_path)[0], seed=6, tokens=[9, 9], count=20) != tokens
    assert run(load(tmp_path)[0], seed=5, tokens=[9, 8], count=20) != tokens
    assert min(tokens) >= SPECIAL_IDS
    assert len(set(tokens)) > 10


def test_every_step_waits_as_told_and_only_the_output_rank_answers(tmp_path: pathlib.Path) -> None:
    executor, pauses = load(tmp_path, rank=1, null_step_s=0.25)
    result = executor.execute(compute(1, (0, 1, True), new=[new_row(0, [5], [0])]), no_mask)
    assert (result.rows, result.token_ids) == ([], [])
    assert pauses == [0.25]


def test_an_interrupted_wait_interrupts_the_step(tmp_path: pathlib.Path) -> None:
    class Stopped(Exception):
        pass

    def stop(seconds: float) -> None:
        raise Stopped

    executor, _ = load(tmp_path)
    executor = NullExecutor(executor.settings, 0, stop)
    executor.load(lambda phase, fraction: None)
    with pytest.raises(Stopped):
        executor.execute(Step(number=1), no_mask)


def test_an_inconsistent_step_is_refused(tmp_path: pathlib.Path) -> None:
    executor, _ = load(tmp_path)
    with pytest.raises(StepInconsistent):
        executor.execute(Step(number=1, finished=[3]), no_mask)


def test_a_mask_is_obeyed(tmp_path: pathlib.Path) -> None:
    executor, _ = load(tmp_path)
    words = bytearray(7 * 4 * 2)
    words[28 + 4 * 4] = 0b10  # second masked row, token 129
    new = [new_row(0, [5], [0]), new_row(1, [5], [1])]
    step = compute(4, (1, 1, True), (0, 1, True), new=new, masked=[0, 1])
    result = executor.execute(step, lambda: Mask(4, bytes(words)))
    assert result.rows == [1, 0]
    assert result.token_ids[0] == 129


def test_a_tiny_vocabulary_has_tokens_too() -> None:
    assert {null_token(1, position, 0, vocab_size=3) for position in range(50)} == {0, 1, 2}


def test_logprobs_are_of_the_token_and_those_that_follow_it() -> None:
    rows = null_rows(3, 5, [9, 7], 2, vocab_size=10)
    assert struct.unpack("<6i", rows.token_ids) == (9, 9, 0, 7, 7, 8)
    values = struct.unpack("<6f", rows.logprobs)
    expected = [null_logprob(5, 9), null_logprob(5, 9), null_logprob(5, 0), null_logprob(6, 7)]
    assert list(values[:4]) == expected
    assert struct.unpack("<2i", rows.ranks) == (1, 2)
    assert null_rows(3, 6, [7], 2, vocab_size=10).logprobs == rows.logprobs[12:]
    assert null_rows(0, 1, [1], 20, vocab_size=3).width == 4
