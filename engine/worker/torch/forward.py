"""Forward passes of a step: its tokens in, their last hidden states out, over cache and tables.

Two ways: a step planned anew on the host, with as many tokens as it has (here); or tile after tile
of fixed shape, which a GPU needs to be bitwise (`tile_forward`).
"""

from collections.abc import Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor

from ...model.attention import KvCache
from ...model.decoder import Decoder, ForwardBatch
from ...model.registry import DTYPES
from ..step_inputs import EmbedSpan, StepInputs


class Forward(Protocol):
    """Cache and block tables of one model; one thread uses it."""

    cache: KvCache

    def set_blocks(self, row: int, block_ids: Sequence[int]) -> None:
        """Set the blocks of a row. Raises `ValueError` for more than a sequence may have."""

    def clear(self, block_ids: Sequence[int]) -> None:
        """Clear blocks that have a new owner."""

    def hidden(self, inputs: StepInputs) -> Tensor:
        """Write keys and values of these tokens; the state of each, and then rows of padding."""


@attrs.define(eq=False)
class BlockTables:
    """Block ids of each row, on the CPU: one tensor, so that decoding costs no Python per block."""

    # (rows, blocks of a sequence of full length), int64.
    ids: Tensor

    @classmethod
    def of(cls, rows: int, length: int, block_tokens: int) -> "BlockTables":
        """`length` bounds the tokens of one row."""
        return cls(torch.zeros((rows, -(-length // block_tokens)), dtype=torch.int64))

    def set(self, row: int, block_ids: Sequence[int]) -> None:
        """Raises `ValueError` for more blocks than there are places."""
        if len(block_ids) > self.ids.shape[1]:
            raise ValueError(f"row {row} has {len(block_ids)} blocks, more than a sequence may")
        self.ids[row, : len(block_ids)] = torch.tensor(block_ids)


@attrs.define(eq=False)
class PlannedForward:
    """The model's own passes, each planned from all its tokens."""

    _model: Decoder
    cache: KvCache
    _tables: BlockTables

    @classmethod
    def of(
        cls, model: Decoder, *, rows: int, blocks: int, block_tokens: int, length: int
    ) -> "PlannedForward":
        """Allocate cache and tables."""
        cache = allocate_cache(model, blocks=blocks, block_tokens=block_tokens)
        return cls(model, cache, BlockTables.of(rows, length, block_tokens))

    def set_blocks(self, row: int, block_ids: Sequence[int]) -> None:
        self._tables.set(row, block_ids)

    def clear(self, block_ids: Sequence[int]) -> None:
        self.cache.clear(block_ids)

    def hidden(self, inputs: StepInputs) -> Tensor:
        """Compute a pass over all tokens."""
        device = self._model.device
        plan = self._model.plan_attention(
            self._tables.ids,
            inputs.rows,
            inputs.positions,
            block_tokens=self.cache.block_tokens,
        )
        batch = ForwardBatch(
            token_ids_T=torch.tensor(inputs.token_ids, device=device),
            positions_T=torch.tensor(inputs.positions, device=device),
            attention=plan,
            embeds=[(span.token_index, embeds_of(span, self._model)) for span in inputs.embeds],
        )
        return self._model.hidden(batch, self.cache)


def allocate_cache(model: Decoder, *, blocks: int, block_tokens: int) -> KvCache:
    """Zeroed memory for so many blocks of all the model's layers."""
    return KvCache.allocate(
        model.config.layers,
        blocks,
        model.attention_shape,
        block_tokens=block_tokens,
        dtype=model.dtype,
        device=model.device,
    )


def embeds_of(span: EmbedSpan, model: Decoder) -> Tensor:
    """The given states (tokens, hidden size), float32 on the model's device."""
    rows = torch.frombuffer(bytearray(span.data), dtype=DTYPES[span.dtype])
    return rows.float().view(-1, model.config.hidden_size).to(model.device)
