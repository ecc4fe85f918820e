"""Forward passes on a GPU, bit for bit the same in any batch: one captured tile, replayed.

A step's tokens are computed 128 at a time, in order, and each such *tile* passes through the same
kernels at the same shapes, padded where it is not full: so a token's bits cannot depend on what is
computed beside it, before or after, and decoding is prefilling. As all shapes are one, one CUDA
graph of all layers serves every step, and the host hands a step to the GPU in a few calls. It costs
a prefill up to twice the time of the widest products, since weights are read once for each tile;
decoding, which waits for memory, costs nothing more.

A mixture of experts waits for its router in the midst of a pass, so it is not captured.
"""

from collections.abc import Iterator, Sequence

import attrs
import torch
from torch import Tensor

from ...model.attention import AttentionPlan, KvCache, block_slots
from ...model.decoder import Decoder
from ...model.gpu_attention import PagedReads, SplitResults, TileTokens, group_tokens_of
from ...model.layers import GPU_TILE_ROWS
from ..step_inputs import StepInputs
from .forward import BlockTables, allocate_cache, embeds_of
from .tile_plan import plan_tiles

# Calls before a capture, in its stream: the library chooses its kernels then, and takes workspaces
# that it keeps for that stream. Taken in a capture, they would be the graph's and end with it.
WARM_CALLS = 2


@attrs.define(eq=False)
class TileForward:
    """A bitwise model on a GPU with its cache. The last block and the last row are of padding."""

    _model: Decoder
    cache: KvCache
    _host_tables: BlockTables
    _tables: Tensor  # the same on the device
    # Token ids, positions, rows, groups' first tokens and counts: what one copy brings.
    _inputs: Tensor
    _embedded: Tensor  # (128, N), the graph's input
    _reads: dict[int, PagedReads]
    # The pass, and its result (128, N), which each replay overwrites.
    _captured: "tuple[torch.cuda.CUDAGraph, Tensor] | None" = None
    _changed: set[int] = attrs.field(factory=set, init=False)

    @classmethod
    def of(
        cls, model: Decoder, *, rows: int, blocks: int, block_tokens: int, length: int
    ) -> "TileForward":
        """Allocate everything, and capture the pass where the model can be captured."""
        device, shape = model.device, model.attention_shape
        cache = allocate_cache(model, blocks=blocks + 1, block_tokens=block_tokens)
        host = BlockTables.of(rows + 1, length, block_tokens)
        host.ids[rows] = blocks
        tables = host.ids.to(device)
        inputs = torch.zeros((5, GPU_TILE_ROWS), dtype=torch.int64, device=device)
        tokens, results = TileTokens(*inputs), SplitResults.allocate(shape, length, device)
        reads = {window: PagedReads(tokens, tables, results, window) for window in shape.windows}
        embedded = torch.zeros((GPU_TILE_ROWS, model.config.hidden_size), device=device)
        made = cls(model, cache, host, tables, inputs, embedded, reads)
        if device.type == "cuda" and model.config.experts is None:
            made._capture()
        return made

    def set_blocks(self, row: int, block_ids: Sequence[int]) -> None:
        """Reaches the device before the next pass."""
        self._host_tables.set(row, block_ids)
        self._changed.add(row)

    def clear(self, block_ids: Sequence[int]) -> None:
        """Nothing to do: what is behind a sequence's last token is never read."""

    def hidden(self, inputs: StepInputs) -> Tensor:
        """Tile after tile; the last one is padded."""
        if self._changed:
            rows = torch.tensor(sorted(self._changed))
            changed = self._host_tables.ids[rows].to(self._tables.device)
            self._tables.index_copy_(0, rows.to(self._tables.device), changed)
            self._changed.clear()
        states = list(self._tiles(inputs))
        return states[0] if len(states) == 1 else torch.cat(states)

    def _tiles(self, inputs: StepInputs) -> Iterator[Tensor]:
        padding_row = len(self._tables) - 1
        group_tokens = group_tokens_of(self._model.attention_shape)
        plans = plan_tiles(
            inputs, padding_row=padding_row, tile=GPU_TILE_ROWS, group_tokens=group_tokens
        )
        embeds = [(span.token_index, embeds_of(span, self._model)) for span in inputs.embeds]
        for index, plan in enumerate(plans):
            self._inputs.copy_(torch.tensor(plan))
            self._embedded.copy_(self._model.embed(self._inputs[0]))
            begin = index * GPU_TILE_ROWS
            for first, given in embeds:
                _place(self._embedded, given, first - begin)
            state = self._replay()
            yield state.clone() if len(plans) > 1 else state

    def _replay(self) -> Tensor:
        if self._captured is None:
            return self._compute()
        graph, hidden = self._captured
        graph.replay()
        return hidden

    def _compute(self) -> Tensor:
        tokens = TileTokens(*self._inputs)
        slots = block_slots(self._tables, tokens.rows, tokens.positions, self.cache.block_tokens)
        plan = AttentionPlan(slots, self._reads)
        return self._model.through_layers(self._embedded, tokens.positions, plan, self.cache)

    def _capture(self) -> None:
        """Record the pass over a tile of padding."""
        self._inputs[2] = len(self._tables) - 1
        graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream(self._model.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self._model.device))
        with torch.inference_mode():
            with torch.cuda.stream(aside):
                for _ in range(WARM_CALLS):
                    self._compute()
            torch.cuda.synchronize(self._model.device)
            with torch.cuda.graph(graph, stream=aside):
                hidden = self._compute()
        self._captured = graph, hidden


def _place(target: Tensor, given: Tensor, first: int) -> None:
    """Copy `given` to rows of `target` from `first` on, as far as both reach."""
    begin, end = max(first, 0), min(first + len(given), len(target))
    if begin < end:
        target[begin:end] = given[begin - first : end - first]
