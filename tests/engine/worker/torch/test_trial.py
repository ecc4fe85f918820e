"""Trial of a loaded model: what it says of one that computes the same in pieces, and of others."""

import pathlib
from typing import Any

import attrs
import pytest

from triolet.engine.step_messages import Step, StepResult
from triolet.engine.worker.executor_interface import WaitMask
from triolet.engine.worker.torch.runner import ModelRunner
from triolet.engine.worker.torch.trial import is_same_in_pieces

from ...model.tiny_models import load_dummy

BLOCK_TOKENS = 16
SIZES: dict[str, Any] = {"rows": 1, "blocks": 32, "block_tokens": BLOCK_TOKENS, "length": 512}


def try_model(run: Any, tokens: int = 512) -> bool:
    return is_same_in_pieces(run, vocab_size=101, tokens=tokens, block_tokens=BLOCK_TOKENS)


@pytest.mark.parametrize("tokens", [1, 2, 16, 149, 150, 512])
def test_a_bitwise_model_is_the_same_and_left_as_it_was(
    tmp_path: pathlib.Path, tokens: int
) -> None:
    runner = ModelRunner.of(load_dummy(tmp_path), **SIZES)
    assert try_model(runner.run, tokens)
    assert not runner._batch.rows


def test_one_bit_in_one_piece_is_seen(tmp_path: pathlib.Path) -> None:
    runner = ModelRunner.of(load_dummy(tmp_path), **SIZES)

    def run(step: Step, wait_mask: WaitMask) -> StepResult:
        result = runner.run(step, wait_mask)
        for index, item in enumerate(result.logprobs):
            if step.token_counts == [60]:
                changed = item.logprobs[:8] + bytes([item.logprobs[8] ^ 1]) + item.logprobs[9:]
                result.logprobs[index] = attrs.evolve(item, logprobs=changed)
        return result

    assert not try_model(run)
