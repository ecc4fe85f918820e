"""Model runner over the kernels: a step becomes one call and its sampled tokens.

Block tables are kept as one array of integers, so that a decode step costs no Python per block. No
torch here.
"""

import time

import attrs
import numpy

from ...kernels.model import (
    Floats,
    ForwardStep,
    GivenEmbeddings,
    Integers,
    NativeModel,
    PreparedStep,
    int32s,
)
from ...step_messages import Step, StepResult
from ..executor_interface import StepOutcome, WaitMask
from ..input_batch import InputBatch
from ..step_inputs import EmbedSpan, StepInputs
from .decode_streak import DecodeStreak, decodes_only
from .sampling import Draw, NativeSampling
from .thread_choice import ThreadChoice


@attrs.define(eq=False)
class NativeRunner:
    """Model and the rows in its cache; one thread uses it."""

    _model: NativeModel
    _batch: InputBatch
    # (rows, blocks of a sequence of full length): block ids of each row.
    _block_tables: Integers
    _sampling: NativeSampling
    _choice: ThreadChoice
    # If the last step only decoded: its rows, and its pass and draws, which the next one uses if it
    # is the same again.
    _streak: DecodeStreak | None = attrs.field(default=None, init=False)
    _calls: tuple[PreparedStep, Draw] | None = attrs.field(default=None, init=False)

    @classmethod
    def of(cls, model: NativeModel, *, rows: int, blocks: int, block_tokens: int, length: int,
           fixed_threads: bool = True) -> "NativeRunner":  # fmt: skip
        """`length` bounds the tokens of one row; threads are the model's, or chosen by time."""
        batch = InputBatch(
            rows_max=rows,
            blocks=blocks,
            block_tokens=block_tokens,
            vocab_size=model.config.vocab_size,
            hidden_size=model.config.hidden_size,
        )
        tables = numpy.zeros((rows, -(-length // block_tokens)), dtype=numpy.int32)
        sampling = NativeSampling.of(batch, model.functions, threads=model.threads, length=length)
        choice = ThreadChoice(model.threads, fixed=fixed_threads)
        return cls(model, batch, tables, sampling, choice)

    def run(self, step: Step, wait_mask: WaitMask) -> StepResult:
        """Compute one step: the rows that sampled, their tokens, and logprobs that were asked for.

        The result says how long it took, the wait for a mask included. Raises `StepInconsistent`,
        and `ValueError` for a row that outgrows its table.
        """
        begin = time.perf_counter()
        streak = self._streak
        if streak is not None and streak.goes_on(step):
            streak.take_step(step, self._batch)
            self._write_tables(step)
            return self._decode(streak, step, wait_mask, begin)
        if streak is not None:
            streak.settle()
            self._streak = self._calls = None
        self._batch.apply(step)
        self._write_tables(step)
        self._sampling.take_step(step)
        if decodes_only(step):
            lags = not self._sampling.looks_at(step.rows)
            self._streak = DecodeStreak.of(step, self._batch, lags=lags)
            return self._decode(self._streak, step, wait_mask, begin)
        return self._compute(step, wait_mask, begin)

    def _prepare_calls(self, streak: DecodeStreak) -> tuple[PreparedStep, Draw]:
        one_each = numpy.arange(len(streak.rows), dtype=numpy.int32)
        step = ForwardStep(
            token_ids=streak.token_ids,
            rows=int32s(streak.rows),
            begins=streak.begins,
            counts=numpy.ones_like(one_each),
            block_tables=self._block_tables,
            logit_tokens=one_each,
        )
        forward = self._model.prepare(step)
        draw = self._sampling.prepare(
            streak.rows, forward.logits, positions=streak.outputs, tokens=streak.token_ids
        )
        return forward, draw

    def _decode(
        self, streak: DecodeStreak, step: Step, wait_mask: WaitMask, begin: float
    ) -> StepResult:
        """The next step of a streak: pass and draws in one call, unless a mask is to come."""
        outcome, model, sampling = StepOutcome(), self._model, self._sampling
        count = len(step.rows)
        model.threads = sampling.threads = self._choice.threads(count)
        if self._calls is None:
            self._calls = self._prepare_calls(streak)
        forward, draw = self._calls
        sampling.begin(draw)
        started = time.perf_counter()
        if step.masked:
            model.compute(forward)
            forward_s = time.perf_counter() - started
            sampling.put_masks(draw, step, wait_mask())
            sampling.draw(draw)
        else:
            forward_s = model.compute_and_draw(forward, draw.call, sampling.scratch_address)
        self._choice.note(count, model.threads, forward_s)
        tokens = sampling.end(draw, outcome)
        ended = time.perf_counter()
        streak.finish_step(tokens)
        return outcome.result(
            step.number,
            step.rows,
            tokens,
            compute_s=ended - begin,
            sample_s=ended - started - forward_s,
        )

    def _compute(self, step: Step, wait_mask: WaitMask, begin: float) -> StepResult:
        """Any step whose differences have been applied."""
        inputs = self._batch.inputs(step)
        outcome = StepOutcome()
        tokens: list[int] = []
        sample_s = 0.0
        if inputs.token_ids:
            logits_RV = self._forward(step, inputs, outcome)
            if inputs.samplings:
                sampling_from = time.perf_counter()
                self._sampling.threads = self._model.threads
                tokens = self._sampling.sample(
                    step, inputs, logits_RV, outcome=outcome, wait_mask=wait_mask
                )
                sample_s = time.perf_counter() - sampling_from
        self._batch.finish_step(step, tokens)
        return outcome.result(
            step.number,
            inputs.sampled_rows(),
            tokens,
            compute_s=time.perf_counter() - begin,
            sample_s=sample_s,
        )

    def _write_tables(self, step: Step) -> None:
        """A new row's blocks, and what rows have grown by."""
        for new in step.new:
            self._write_blocks(new.row, 0, new.block_ids)
        if not step.grown:
            return
        begins: dict[int, int] = {}
        for row, block_ids in reversed(step.grown):  # what came last is at the end
            end = begins.get(row, len(self._batch.rows[row].block_ids))
            begins[row] = end - len(block_ids)
            self._write_blocks(row, begins[row], block_ids)

    def _write_blocks(self, row: int, begin: int, block_ids: list[int]) -> None:
        end = begin + len(block_ids)
        if end > self._block_tables.shape[1]:
            raise ValueError(f"row {row} has {end} blocks, more than a sequence may")
        self._block_tables[row, begin:end] = block_ids

    def _forward(self, step: Step, inputs: StepInputs, outcome: StepOutcome) -> Floats:
        """The logits of the rows that sample; on the way, those of prompts are scored."""
        wanted = int32s([sampling.token_index for sampling in inputs.samplings])
        rows = self._batch.rows
        forward = ForwardStep(
            token_ids=int32s(inputs.token_ids),
            rows=int32s(step.rows),
            begins=int32s([rows[row].computed for row in step.rows]),
            counts=int32s(step.token_counts),
            block_tables=self._block_tables,
            logit_tokens=wanted,
            embeddings=self._embeddings(inputs) if inputs.embeds else None,
            keeps_all=bool(inputs.prompt_spans),
        )
        if not inputs.prompt_spans:
            return self._timed_forward(self._model.prepare(forward))
        self._model.forward(attrs.evolve(forward, logit_tokens=wanted[:0]))
        self._score_prompts(forward, inputs, outcome)
        return self._model.logits(forward, wanted)

    def _embeddings(self, inputs: StepInputs) -> GivenEmbeddings:
        hidden = self._model.config.hidden_size
        spans = [(span.token_index, _floats(span).reshape(-1, hidden)) for span in inputs.embeds]
        return GivenEmbeddings.of(len(inputs.token_ids), spans)

    def _timed_forward(self, forward: PreparedStep) -> Floats:
        tokens = forward.batch.tokens
        self._model.threads = threads = self._choice.threads(tokens)
        begin = time.perf_counter()
        logits_RV = self._model.compute(forward)
        self._choice.note(tokens, threads, time.perf_counter() - begin)
        return logits_RV

    def _score_prompts(
        self, forward: ForwardStep, inputs: StepInputs, outcome: StepOutcome
    ) -> None:
        """Logprobs of prompts, a slice of a span at a time."""
        rows = self._model.logit_rows_max
        for span in inputs.prompt_spans:
            for begin in range(0, len(span.targets), rows):
                first = span.token_index + begin
                end = span.token_index + min(len(span.targets), begin + rows)
                logits_RV = self._model.logits(forward, int32s(range(first, end)))
                self._sampling.score(span, begin, logits_RV, outcome)


def _floats(span: EmbedSpan) -> Floats:
    """A bfloat16 is the upper half of a float32."""
    if span.dtype == "float32":
        return numpy.frombuffer(span.data, dtype="<f4")
    upper = numpy.frombuffer(span.data, dtype="<u2").astype(numpy.uint32) << numpy.uint32(16)
    return upper.view(numpy.float32)
