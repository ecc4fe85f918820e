"""Forward passes in tiles: as one planned pass, tile after tile, with rows that come, grow and go.

Runs on a CPU too, interpreted and never captured, with tiles of 16 rows, as the CPU's products are.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from triolet.engine.model import gpu_attention
from triolet.engine.model_config.config import MISTRAL
from triolet.engine.worker.step_inputs import EmbedSpan, StepInputs
from triolet.engine.worker.torch import tile_forward
from triolet.engine.worker.torch.forward import Forward, PlannedForward
from triolet.engine.worker.torch.tile_forward import TileForward

from ...model.tiny_models import load_dummy, random_tokens

TILE = 16
HIDDEN = 64
# (Row, first position, how many): two tiles, one, and one that is not full.
STEPS = [[(0, 0, 20), (2, 0, 3)], [(0, 20, 1), (1, 0, 15)], [(2, 3, 1), (0, 21, 1)]]
BLOCKS = {0: [5, 1], 1: [2], 2: [3]}
EMBED = EmbedSpan(14, "float32", torch.full((4, HIDDEN), 0.5).numpy().tobytes())


def inputs_of(work: Sequence[tuple[int, int, int]], embeds: list[EmbedSpan]) -> StepInputs:
    rows = [row for row, _, count in work for _ in range(count)]
    positions = [first + i for _, first, count in work for i in range(count)]
    return StepInputs(random_tokens(len(rows), seed=len(rows)), positions, rows, [], [], embeds)


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 12])
def test_tiles_compute_what_a_planned_pass_does(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Given embeddings reach from the first step's first tile into its second."""
    monkeypatch.setattr(tile_forward, "GPU_TILE_ROWS", TILE)
    monkeypatch.setattr(gpu_attention, "GPU_TILE_ROWS", TILE)
    family: dict[str, Any] = {"architectures": [MISTRAL], "sliding_window": window}
    model = load_dummy(tmp_path, **(family if window else {}))
    sizes = {"rows": 3, "blocks": 6, "block_tokens": 16, "length": 64}
    forwards: list[Forward] = [PlannedForward.of(model, **sizes), TileForward.of(model, **sizes)]
    for forward in forwards:
        for memory in (*forward.cache.keys, *forward.cache.values):
            memory.fill_(torch.nan)
        forward.clear([*range(6)])
        for row, block_ids in BLOCKS.items():
            forward.set_blocks(row, block_ids)
    for index, work in enumerate(STEPS):
        inputs = inputs_of(work, [] if index else [EMBED])
        with torch.inference_mode():
            expected, found = (forward.hidden(inputs) for forward in forwards)
        count = len(inputs.token_ids)
        torch.testing.assert_close(found[:count], expected[:count], rtol=1e-4, atol=1e-4)


def test_a_row_of_too_many_blocks_is_refused(tmp_path: pathlib.Path) -> None:
    sizes = {"rows": 1, "blocks": 6, "block_tokens": 16, "length": 32}
    forward = TileForward.of(load_dummy(tmp_path), **sizes)
    with pytest.raises(ValueError, match="row 0 has 3 blocks, more than a sequence may"):
        forward.set_blocks(0, [0, 1, 2])
