"""Turns a step into one forward pass and its sampled tokens.

Keeps the block tables as one tensor, so that a decode step costs no Python per block, and hands the
rest to the model and the sampler. Must not know messages on the wire, files or processes.
"""

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from ..model.attention import KvCache, plan_attention
from ..model.decoder import ForwardBatch
from ..model.registry import Model
from ..step_messages import Mask, Step
from .input_batch import InputBatch, StepInputs
from .sampler import SampledRow, sample_tokens, unpack_mask


@attrs.define(eq=False)
class ModelRunner:
    """One model with its cache and the rows in it; one thread uses it."""

    _model: Model
    _cache: KvCache
    _batch: InputBatch
    # (rows, blocks of a sequence of full length), int64, on the CPU: block ids of each row.
    _block_tables: Tensor

    @classmethod
    def of(
        cls, model: Model, *, rows: int, blocks: int, block_tokens: int, length: int
    ) -> "ModelRunner":
        """Allocate cache and tables. `length` bounds the tokens of one row."""
        cache = KvCache.allocate(
            model.config.layers,
            blocks,
            model.attention_shape,
            block_tokens=block_tokens,
            dtype=model.dtype,
            device=model.device,
        )
        batch = InputBatch(
            rows_max=rows,
            blocks=blocks,
            block_tokens=block_tokens,
            vocab_size=model.config.vocab_size,
        )
        tables = torch.zeros((rows, -(-length // block_tokens)), dtype=torch.int64)
        return cls(model, cache, batch, tables)

    def run(self, step: Step, wait_mask: Callable[[], Mask]) -> tuple[list[int], list[int]]:
        """Compute one step: the rows that sampled, and their tokens.

        Raises `StepInconsistent`, and `ValueError` for a row that outgrows its table.
        """
        inputs = self._batch.take_step(step)
        self._write_tables(step)
        rows = [sampling.row for sampling in inputs.samplings]
        with torch.inference_mode():
            logits_RV = self._forward(inputs)
            tokens = self._sample(step, inputs, logits_RV, wait_mask)
        self._batch.finish_step(step, tokens)
        return rows, tokens

    def _write_tables(self, step: Step) -> None:
        for row in {*(new.row for new in step.new), *(row for row, _ in step.grown)}:
            block_ids = self._batch.rows[row].block_ids
            if len(block_ids) > self._block_tables.shape[1]:
                raise ValueError(f"row {row} has {len(block_ids)} blocks, more than a sequence may")
            self._block_tables[row, : len(block_ids)] = torch.tensor(block_ids)

    def _forward(self, inputs: StepInputs) -> Tensor:
        model = self._model
        if not inputs.token_ids:
            return torch.empty((0, model.config.vocab_size))
        plan = plan_attention(
            self._block_tables,
            inputs.rows,
            inputs.positions,
            block_tokens=self._cache.block_tokens,
            shape=model.attention_shape,
            device=model.device,
        )
        wanted = [sampling.token_index for sampling in inputs.samplings]
        batch = ForwardBatch(
            token_ids_T=torch.tensor(inputs.token_ids, device=model.device),
            positions_T=torch.tensor(inputs.positions, device=model.device),
            attention=plan,
        )
        hidden = model.hidden(batch, self._cache)
        return model.logits(hidden, torch.tensor(wanted, dtype=torch.int64, device=model.device))

    def _sample(
        self, step: Step, inputs: StepInputs, logits_RV: Tensor, wait_mask: Callable[[], Mask]
    ) -> list[int]:
        if not inputs.samplings:
            return []
        rows = [SampledRow(item.parameters, item.position) for item in inputs.samplings]
        if not step.masked:
            return sample_tokens(logits_RV, rows)
        allowed = unpack_mask(wait_mask().words, len(step.masked), logits_RV.shape[1])
        forbidden_RV = torch.zeros(logits_RV.shape, dtype=torch.bool)
        places = {item.row: index for index, item in enumerate(inputs.samplings)}
        for index, row in enumerate(step.masked):
            if row in places:
                forbidden_RV[places[row]] = ~allowed[index]
        return sample_tokens(logits_RV, rows, forbidden_RV.to(logits_RV.device))
