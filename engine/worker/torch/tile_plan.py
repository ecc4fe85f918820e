"""Plan of a step's tiles: which tokens each has, and which of them attend as one group.

Sans-IO. The lists go to the device as they are, see `model.gpu_attention.TileTokens`.
"""

from collections.abc import Sequence
from itertools import groupby

from ..step_inputs import StepInputs

# Token ids, positions, rows, groups' first tokens, groups' counts: each one number for each place.
TilePlan = list[list[int]]


def plan_tiles(
    inputs: StepInputs, *, padding_row: int, tile: int, group_tokens: int
) -> list[TilePlan]:
    """Tiles of `tile` places over the step's tokens, in their order.

    Places beyond the last token are of `padding_row`, position 0 and in no group. A group is at
    most `group_tokens` successive tokens of one row, all in one tile.
    """
    plans = []
    for begin in range(0, len(inputs.token_ids), tile):
        rows = inputs.rows[begin : begin + tile]
        padding = [0] * (tile - len(rows))
        groups = _groups(rows, group_tokens)
        no_group = [0] * (tile - len(groups))
        plans.append(
            [
                inputs.token_ids[begin : begin + tile] + padding,
                inputs.positions[begin : begin + tile] + padding,
                rows + [padding_row] * len(padding),
                [first for first, _ in groups] + no_group,
                [count for _, count in groups] + no_group,
            ]
        )
    return plans


def _groups(rows: Sequence[int], group_tokens: int) -> list[tuple[int, int]]:
    """(First token, how many) of each."""
    groups = []
    begin = 0
    for _, tokens in groupby(rows):
        end = begin + len(list(tokens))
        groups += [
            (first, min(group_tokens, end - first)) for first in range(begin, end, group_tokens)
        ]
        begin = end
    return groups
