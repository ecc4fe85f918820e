"""Epochs from blocks: each once, in order, and more are asked for before there are none."""

import pytest

from triolet.runtime.hosts.epoch_blocks import EPOCHS_LEFT, EpochBlocks


def test_epochs_come_in_order_and_another_block_is_asked_for_in_time() -> None:
    asked: list[int] = []
    epochs = EpochBlocks(lambda: asked.append(1))
    first = range(10, 10 + EPOCHS_LEFT + 2)
    epochs.add(first)
    assert [next(epochs), next(epochs)] == [10, 11]
    assert asked == []
    assert next(epochs) == 12
    assert asked == [1]
    epochs.add(range(500, 600))
    epochs.add(range(500, 600))  # it was sent again
    assert [*first[3:], 500, 501] == [next(epochs) for _ in range(EPOCHS_LEFT + 1)]
    assert len(asked) == 1


def test_without_a_block_there_is_none() -> None:
    epochs = EpochBlocks(lambda: None)
    epochs.add(range(7, 8))
    assert next(epochs) == 7
    with pytest.raises(StopIteration):
        next(epochs)
