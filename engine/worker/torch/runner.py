"""Model runner over torch: a step becomes one forward pass and its sampled tokens.

Rows and their blocks are kept here; the rest is the forward pass's and the sampler's.
"""

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from ...model.decoder import Decoder
from ...step_messages import NOT_NUMBERS, Mask, Step, StepResult
from ..executor_interface import StepOutcome
from ..input_batch import InputBatch
from ..step_inputs import Sampling, StepInputs
from .forward import Forward, PlannedForward
from .logprobs import logprobs_of
from .sampler import SampledRow, sample_tokens, unpack_mask

# Logits of prompts are computed for logprobs in slices of at most so many numbers (16 MiB; their
# int64 and float64 temporaries are a few times as large).
PROMPT_LOGITS_MAX = 2**22


@attrs.define(eq=False)
class ModelRunner:
    """Model and the rows in it; one thread uses it."""

    _model: Decoder
    _forward: Forward
    _batch: InputBatch

    @classmethod
    def of(
        cls, model: Decoder, *, rows: int, blocks: int, block_tokens: int, length: int
    ) -> "ModelRunner":
        """Allocate cache and tables. `length` bounds the tokens of one row."""
        make: Callable[..., Forward] = PlannedForward.of
        if model.device.type == "cuda" and model.bitwise:
            # Imports Triton, which comes with a torch for GPUs alone.
            from .tile_forward import TileForward

            make = TileForward.of
        forward = make(model, rows=rows, blocks=blocks, block_tokens=block_tokens, length=length)
        batch = InputBatch(
            rows_max=rows,
            blocks=blocks,
            block_tokens=block_tokens,
            vocab_size=model.config.vocab_size,
            hidden_size=model.config.hidden_size,
        )
        return cls(model, forward, batch)

    def run(self, step: Step, wait_mask: Callable[[], Mask]) -> StepResult:
        """Compute one step: the rows that sampled, their tokens, and logprobs that were asked for.

        Raises `StepInconsistent`, and `ValueError` for a row that outgrows its table.
        """
        inputs = self._batch.take_step(step)
        for row in {*(new.row for new in step.new), *(row for row, _ in step.grown)}:
            self._forward.set_blocks(row, self._batch.rows[row].block_ids)
        self._forward.clear(self._fresh_blocks(step))
        outcome = StepOutcome()
        tokens: list[int] = []
        with torch.inference_mode():
            if inputs.token_ids:
                hidden = self._forward.hidden(inputs)
                self._score_prompts(inputs, hidden, outcome)
                if inputs.samplings:
                    wanted = [sampling.token_index for sampling in inputs.samplings]
                    logits_RV = self._model.logits(hidden, self._indices(wanted))
                    forbidden_RV = None
                    if step.masked:
                        forbidden_RV = self._forbidden(step, inputs.samplings, wait_mask())
                    tokens = self._sample(logits_RV, inputs.samplings, outcome, forbidden_RV)
        self._batch.finish_step(step, tokens)
        return outcome.result(step.number, inputs.sampled_rows(), tokens)

    def _fresh_blocks(self, step: Step) -> list[int]:
        """Blocks that rows have got in this step, and in which nothing of theirs is yet."""
        fresh = [block_id for _, block_ids in step.grown for block_id in block_ids]
        for new in step.new:
            fresh += new.block_ids[-(-new.computed_tokens // self._batch.block_tokens) :]
        return fresh

    def _indices(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._model.device)

    def _score_prompts(self, inputs: StepInputs, hidden: Tensor, outcome: StepOutcome) -> None:
        """Logprobs of prompts, a slice of a span at a time."""
        slice_rows = max(1, PROMPT_LOGITS_MAX // self._model.config.vocab_size)
        for span in inputs.prompt_spans:
            for begin in range(0, len(span.targets), slice_rows):
                targets = span.targets[begin : begin + slice_rows]
                token = span.token_index + begin
                wanted = self._indices(range(token, token + len(targets)))
                logits_RV = self._model.logits(hidden, wanted)
                found = logprobs_of(logits_RV, targets, span.alternatives)
                if not found.finite_R.all():
                    self._batch.failures[span.row] = NOT_NUMBERS
                    break
                outcome.logprobs.append(found.message(span.row, span.first + begin))

    def _sample(
        self,
        logits_RV: Tensor,
        samplings: list[Sampling],
        outcome: StepOutcome,
        forbidden_RV: Tensor | None,
    ) -> list[int]:
        asking = [i for i, item in enumerate(samplings) if item.parameters.logprobs is not None]
        raw_AV = logits_RV[asking]  # a copy: sampling overwrites
        sampled = sample_tokens(logits_RV, [self._sampled_row(s) for s in samplings], forbidden_RV)
        for index, reason in sampled.failures.items():
            outcome.fail(samplings[index].row, reason)
        for row, reason in self._batch.failures.items():
            outcome.fail(row, reason)
        for raw_V, index in zip(raw_AV, asking, strict=True):
            row, token = samplings[index].row, sampled.token_ids[index]
            alternatives = samplings[index].parameters.logprobs or 0
            found = logprobs_of(raw_V.unsqueeze(0), [token], alternatives)
            outcome.logprobs.append(found.message(row, len(self._batch.rows[row].token_ids)))
        return sampled.token_ids

    def _sampled_row(self, sampling: Sampling) -> SampledRow:
        held = self._batch.rows[sampling.row]
        return SampledRow(held.sampling, sampling.position, held.seen, held.forbidden())

    def _forbidden(self, step: Step, samplings: list[Sampling], mask: Mask) -> Tensor:
        vocab_size = self._model.config.vocab_size
        allowed = unpack_mask(mask.words, len(step.masked), vocab_size)
        forbidden_RV = torch.zeros((len(samplings), vocab_size), dtype=torch.bool)
        places = {item.row: index for index, item in enumerate(samplings)}
        for index, row in enumerate(step.masked):
            if row in places:
                forbidden_RV[places[row]] = ~allowed[index]
        return forbidden_RV.to(self._model.device)
