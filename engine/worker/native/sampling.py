"""Sampling of rows and scoring of prompts by the native kernels: the fast form of `torch/sampler`.

What a request asks for is written into a table once, when its row comes, so that a step of rows
without wishes costs a few microseconds of Python whatever their number. No torch here. Letters: R
rows, C columns of logprobs.
"""

import operator
from collections.abc import Sequence
from ctypes import CDLL, byref
from types import MappingProxyType

import attrs
import numpy
from numpy.typing import NDArray

from ...kernels.sampler import (
    FAILED_ALL_FORBIDDEN,
    FAILED_NOT_NUMBERS,
    ROW_NUMBERS,
    ROW_PARAMETERS,
    STRIDE,
    SampleCall,
    ScoreCall,
)
from ...step_messages import ALL_FORBIDDEN, NOT_NUMBERS, Mask, RowLogprobs, Step
from ..executor_interface import StepOutcome, WaitMask
from ..input_batch import HeldRow, InputBatch
from ..numerics import GREEDY_BELOW, exact_log
from ..step_inputs import PromptSpan, StepInputs

Array = NDArray[numpy.generic]
Floats = NDArray[numpy.float32]
Integers = NDArray[numpy.int32]
REASONS = MappingProxyType({FAILED_NOT_NUMBERS: NOT_NUMBERS, FAILED_ALL_FORBIDDEN: ALL_FORBIDDEN})
_numbers_of = operator.attrgetter(*ROW_NUMBERS)


@attrs.frozen(eq=False)
class Columns:
    """Room for the logprobs of R rows, as wide as the widest."""

    top_ids_RC: Integers
    logprobs_RC: Floats
    ranks_R: Integers

    @classmethod
    def of(cls, rows: int, width: int) -> "Columns":
        """Not filled yet."""
        shape = (rows, width)
        return cls(
            numpy.zeros(shape, numpy.int32),
            numpy.zeros(shape, numpy.float32),
            numpy.zeros(rows, numpy.int32),
        )

    def put_into(self, call: SampleCall | ScoreCall) -> None:
        """Let a call fill them."""
        call.top_ids, call.logprobs = _address(self.top_ids_RC), _address(self.logprobs_RC)
        call.ranks, call.width = _address(self.ranks_R), self.top_ids_RC.shape[1]

    def message(self, row: int, first: int, positions: slice, width: int) -> RowLogprobs:
        """Message with some of the rows, as logprobs of successive tokens of a request."""
        return RowLogprobs(
            row=row,
            first=first,
            width=width,
            token_ids=self.top_ids_RC[positions, :width].tobytes(),
            logprobs=self.logprobs_RC[positions, :width].tobytes(),
            ranks=self.ranks_R[positions].tobytes(),
        )


@attrs.define(eq=False)
class Draw:
    """A call that samples these rows, with the arrays it points to."""

    call: SampleCall
    rows: list[int]
    tokens: Integers
    failures: Integers
    no_failures: bytes  # as the bytes of `failures` are where there is none
    _kept: tuple[Array, ...]
    # Other memory that it points to in one step, and where logprobs that are asked for go.
    of_step: list[Array] = attrs.field(factory=list, init=False)
    columns: Columns | None = attrs.field(default=None, init=False)


@attrs.define(eq=False)
class NativeSampling:
    """The sampling of the rows in one batch; one thread uses it.

    `length` bounds the tokens of one row. `threads` may be lowered, and raised again to what it was
    made with: results do not depend on it. Logits are float32, (R, `stride`), contiguous; they are
    overwritten, and what pads them as well.
    """

    stride: int
    threads: int
    _batch: InputBatch
    _functions: CDLL
    _threads_most: int
    _length: int
    _table: NDArray[numpy.void]
    _scratch: NDArray[numpy.uint8]
    scratch_address: int
    # {row: arrays that its entry of the table points to}.
    _kept: dict[int, list[Array]] = attrs.field(factory=dict, init=False)
    # Rows that may forbid other tokens at each position, and {row: alternatives} that are asked.
    _forbidding: set[int] = attrs.field(factory=set, init=False)
    _asking: dict[int, int] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(
        cls, batch: InputBatch, functions: CDLL, *, threads: int, length: int
    ) -> "NativeSampling":
        """Take the table and the working memory."""
        table = numpy.zeros(batch.rows_max, ROW_PARAMETERS)
        stride = -(-batch.vocab_size // STRIDE) * STRIDE
        scratch = numpy.empty(functions.triolet_sample_scratch(stride, threads), numpy.uint8)
        address = _address(scratch)
        return cls(stride, threads, batch, functions, threads, length, table, scratch, address)

    def take_step(self, step: Step) -> None:
        """Forget and take rows as the batch has just done."""
        for row in step.finished:
            self._kept.pop(row, None)
            self._forbidding.discard(row)
            self._asking.pop(row, None)
        for new in step.new:
            self._take(new.row, self._batch.rows[new.row])

    def looks_at(self, rows: list[int]) -> bool:
        """Whether the tokens that one of these rows holds are asked for when it samples."""
        return not (self._forbidding.isdisjoint(rows) and self._asking.keys().isdisjoint(rows))

    def sample(
        self,
        step: Step,
        inputs: StepInputs,
        logits_RV: Floats,
        *,
        outcome: StepOutcome,
        wait_mask: WaitMask,
    ) -> list[int]:
        """A token for each of `inputs.samplings`; of a row that fails it means nothing."""
        draw = self.prepare(
            inputs.sampled_rows(),
            logits_RV,
            positions=numpy.array([item.position for item in inputs.samplings], numpy.int32),
            tokens=numpy.zeros(len(inputs.samplings), numpy.int32),
        )
        self.begin(draw)
        if step.masked:
            self.put_masks(draw, step, wait_mask())
        self.draw(draw)
        return self.end(draw, outcome)

    def prepare(
        self, rows: list[int], logits_RV: Floats, *, positions: Integers, tokens: Integers
    ) -> Draw:
        """A call for as many steps as these rows sample together, of which each is done in parts.

        First `begin`, then `put_masks` where there are any, then `draw` or the call beside a pass,
        then `end`. Values of the arrays may change between steps; tokens are left in `tokens`, too.
        """
        call, failures = SampleCall(), numpy.zeros(len(rows), numpy.int32)
        self._fill(call, logits_RV, len(rows))
        table_rows = numpy.array(rows, numpy.int32)
        call.table = _address(self._table)
        call.table_rows, call.positions = _address(table_rows), _address(positions)
        call.tokens, call.failures = _address(tokens), _address(failures)
        kept = (logits_RV, table_rows, positions)
        return Draw(call, rows, tokens, failures, failures.tobytes(), kept)

    def draw(self, draw: Draw) -> None:
        """The call itself, where it is not made with a pass."""
        self._functions.triolet_sample(byref(draw.call), self.scratch_address)

    def begin(self, draw: Draw) -> None:
        """Fill in what is of one step; its masks are put in later."""
        rows, call = draw.rows, draw.call
        call.threads = self.threads
        call.forbidden = call.forbidden_ends = call.masks = call.mask_of = None
        draw.of_step = []
        if self._forbidding and not self._forbidding.isdisjoint(rows):
            draw.of_step += self._put_forbidden(call, rows)
        draw.columns = None
        if self._asking and not self._asking.keys().isdisjoint(rows):
            widest = max(self._asking.get(row, 0) for row in rows)
            draw.columns = Columns.of(len(rows), 1 + widest)
            draw.columns.put_into(call)

    def end(self, draw: Draw, outcome: StepOutcome) -> list[int]:
        """The tokens, and to `outcome` everything else that the call has found."""
        rows = draw.rows
        found: list[int] = draw.tokens.tolist()
        if draw.failures.tobytes() != draw.no_failures:
            for index in draw.failures.nonzero()[0].tolist():
                outcome.fail(rows[index], REASONS[int(draw.failures[index])])
        for row, reason in self._batch.failures.items():
            outcome.fail(row, reason)
        if draw.columns is not None:
            for index, row in enumerate(rows):
                if row in self._asking:
                    first, width = len(self._batch.rows[row].token_ids), 1 + self._asking[row]
                    place = slice(index, index + 1)
                    outcome.logprobs.append(draw.columns.message(row, first, place, width))
        return found

    def score(self, span: PromptSpan, begin: int, logits_RV: Floats, outcome: StepOutcome) -> None:
        """Logprobs of the targets of `span` from `begin` on, one for each row of logits."""
        count = len(logits_RV)
        self._fill(call := ScoreCall(), logits_RV, count)
        targets = numpy.array(span.targets[begin : begin + count], numpy.int32)
        assert len(targets) == count
        failures = numpy.zeros(count, numpy.int32)
        call.targets, call.failures = _address(targets), _address(failures)
        width = 1 + min(span.alternatives, self._batch.vocab_size)
        columns = Columns.of(count, width)
        columns.put_into(call)
        self._functions.triolet_score(byref(call), self.scratch_address)
        if failures.any():
            self._batch.failures[span.row] = NOT_NUMBERS
            return
        message = columns.message(span.row, span.first + begin, slice(count), width)
        outcome.logprobs.append(message)

    def _fill(self, call: SampleCall | ScoreCall, logits_RV: Floats, rows: int) -> None:
        assert logits_RV.shape == (rows, self.stride)
        assert logits_RV.dtype == numpy.float32
        assert 1 <= self.threads <= self._threads_most
        assert logits_RV.flags.c_contiguous
        call.logits, call.stride, call.rows = _address(logits_RV), self.stride, rows
        call.vocab, call.threads = self._batch.vocab_size, self.threads

    def _take(self, row: int, held: HeldRow) -> None:
        """Fill in the row's entry of the table."""
        sampling, kept = held.sampling, list[Array]()
        entry = self._table[row : row + 1]
        entry[:] = 0
        for name, number in zip(ROW_NUMBERS, _numbers_of(sampling), strict=True):
            entry[name] = number
        entry["logprobs"] = -1
        if sampling.temperature >= GREEDY_BELOW:
            inverse = numpy.float32(1) / numpy.float32(sampling.temperature)
            entry["inverse_temperature"] = inverse
        entry["least"] = exact_log(sampling.min_p) if sampling.min_p > 0 else -numpy.inf
        if sampling.logprobs is not None:
            self._asking[row] = min(sampling.logprobs, self._batch.vocab_size)
            entry["logprobs"] = self._asking[row]
        if held.may_forbid():
            self._forbidding.add(row)
        if sampling.logit_bias:
            kept.append(ids := numpy.array([i for i, _ in sampling.logit_bias], numpy.int32))
            kept.append(bias := numpy.array([b for _, b in sampling.logit_bias], numpy.float32))
            entry["bias_ids"], entry["bias_values"] = _address(ids), _address(bias)
            entry["bias_count"] = len(ids)
        if sampling.allowed_token_ids:
            bits = numpy.zeros(self.stride, numpy.uint8)
            bits[sampling.allowed_token_ids] = 1
            kept.append(words := numpy.packbits(bits, bitorder="little"))
            entry["allowed"] = _address(words)
        if held.seen is not None:
            kept.append(seen := self._seen(held.seen))
            entry["seen_ids"], entry["seen_counts"] = _address(seen[0]), _address(seen[1])
            entry["seen_count"], entry["seen_max"] = len(held.seen), seen.shape[1]
        self._kept[row] = kept

    def _seen(self, counts: dict[int, int]) -> Integers:
        """Ids and counts, with room for what the kernels will append."""
        seen = numpy.zeros((2, min(self._length + 1, self._batch.vocab_size)), numpy.int32)
        seen[0, : len(counts)] = list(counts)
        seen[1, : len(counts)] = list(counts.values())
        return seen

    def _put_forbidden(self, call: SampleCall, rows: Sequence[int]) -> list[Array]:
        forbidden: list[int] = []
        ends = []
        for row in rows:
            if row in self._forbidding:
                held = self._batch.rows[row]
                forbidden += held.forbidden()
                if not held.may_forbid():
                    self._forbidding.discard(row)
            ends.append(len(forbidden))
        arrays = [numpy.array(forbidden, numpy.int32), numpy.array(ends, numpy.int32)]
        call.forbidden, call.forbidden_ends = map(_address, arrays)
        return [*arrays]

    def put_masks(self, draw: Draw, step: Step, mask: Mask) -> None:
        """Point to the mask's words as they came. Raises `ValueError` if their length is wrong."""
        columns = -(-self._batch.vocab_size // 32)
        if len(mask.words) != len(step.masked) * columns * 4:
            raise ValueError(f"mask of {len(mask.words)} bytes for {len(step.masked)} rows")
        words = numpy.frombuffer(mask.words, numpy.uint32)
        places = {row: index for index, row in enumerate(step.masked)}
        mask_of = numpy.array([places.get(row, -1) for row in draw.rows], numpy.int32)
        draw.call.masks, draw.call.mask_of = _address(words), _address(mask_of)
        draw.of_step += [words, mask_of]


def _address(array: Array) -> int:
    return int(array.ctypes.data)
