"""Logprobs on their way through the engine core: with their tokens, once, and again by a RESYNC."""

import struct

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.config import EngineSettings
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.logprob_log import LogprobLog
from triolet.engine.messages import (
    AddRequest,
    FinishReason,
    LiveRequest,
    RequestOutput,
    TokenLogprobs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import RowLogprobs, Step, StepResult, WorkerReady

READY = WorkerReady(kv_blocks=8, max_model_len=24, vocab_size=50, numerics_id="none", bitwise=True)
ADD = AddRequest(
    request_id="r",
    attempt=1,
    prompt_token_ids=[1, 2, 3, 4, 5],
    sampling=SamplingParams(seed=1, max_tokens=4, logprobs=1, prompt_logprobs=0),
)


def integers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def expected(first: int, count: int, width: int) -> TokenLogprobs:
    """What is said of tokens from `first` of the row on; all items differ."""
    positions = range(first, first + count)
    items = integers(*[100 * place + column for place in positions for column in range(width)])
    return TokenLogprobs(width, items, items, integers(*positions))


def of_row(row: int, first: int, count: int, width: int) -> RowLogprobs:
    arrays = expected(first, count, width)
    return RowLogprobs(row=row, first=first, **attrs.asdict(arrays))


@attrs.define
class Bed:
    """An engine core with one request, and a worker that only knows how long its rows are."""

    core: EngineCore
    lengths: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    wants_prompt: dict[int, bool] = attrs.field(factory=dict)
    outputs: list[RequestOutput] = attrs.field(factory=list)

    def step(self, failed: str = "") -> None:
        step = self.core.schedule(0.0)
        assert step is not None
        for message in self.core.finish_step(self.compute(step, failed), 0.0).values():
            self.outputs += message.outputs
            assert not message.attempts, "columns have no room for logprobs"
        self.core.check_invariants()

    def compute(self, step: Step, failed: str) -> StepResult:
        logprobs = []
        for new in step.new:
            self.lengths[new.row] = (new.computed_tokens, new.prompt_tokens)
            self.wants_prompt[new.row] = new.sampling.prompt_logprobs is not None
        rows = [row for row, samples in zip(step.rows, step.samples, strict=True) if samples]
        for row, count in zip(step.rows, step.token_counts, strict=True):
            done, prompt = self.lengths[row]
            self.lengths[row] = (done + count, prompt)
            of_prompt = min(done + count, prompt - 1) - done
            if of_prompt > 0 and self.wants_prompt[row]:
                logprobs.append(of_row(row, done + 1, of_prompt, 1))
            if row in rows and not failed:
                logprobs.append(of_row(row, done + count, 1, 2))
        if failed:
            return StepResult(step.number, [], [], failed_rows=[(row, failed) for row in rows])
        return StepResult(step.number, rows, [9] * len(rows), logprobs=logprobs)


def make_bed(add: AddRequest = ADD, *, step_tokens: int = 3) -> Bed:
    settings = EngineSettings(model="none", block_tokens=4, max_num_batched_tokens=step_tokens)
    core = EngineCore(settings, READY)
    core.add("f0", add)
    return Bed(core)


def test_those_of_the_prompt_come_with_the_first_token_however_it_was_cut() -> None:
    for step_tokens in (1, 3, 8):
        bed = make_bed(step_tokens=step_tokens)
        while not bed.outputs:
            bed.step()
        [first] = bed.outputs
        assert (first.first_index, first.token_ids) == (0, [9])
        assert first.prompt_logprobs == expected(1, 4, 1)
        assert first.logprobs == expected(5, 1, 2)
        bed.step()
        assert bed.outputs[1].prompt_logprobs is None
        assert bed.outputs[1].logprobs == expected(6, 1, 2)


def test_a_resync_brings_both_again_from_where_it_asks() -> None:
    bed = make_bed()
    for _ in range(4):
        bed.step()
    [again], _ = bed.core.resync("f0", [LiveRequest("r", 1, 0, None)])
    assert (again.prompt_logprobs, again.logprobs) == (expected(1, 4, 1), expected(5, 3, 2))
    [again], _ = bed.core.resync("f0", [LiveRequest("r", 1, 2, None)])
    assert (again.token_ids, again.prompt_logprobs) == ([9], None)
    assert again.logprobs == expected(7, 1, 2)


def test_an_end_is_sent_again_with_its_logprobs() -> None:
    bed = make_bed()
    while bed.core.has_work():
        bed.step()
    last = bed.outputs[-1]
    assert (last.finish_reason, last.logprobs) == (FinishReason.LENGTH, expected(8, 1, 2))
    [again], _ = bed.core.resync("f0", [LiveRequest("r", 1, 1, None)])
    assert (again.finish_reason, again.logprobs) == (FinishReason.LENGTH, expected(6, 3, 2))


def test_a_replay_brings_those_of_new_tokens_only() -> None:
    replay = attrs.evolve(ADD, output_token_ids=[9, 9])
    bed = make_bed(replay, step_tokens=8)
    bed.step()
    [first] = bed.outputs
    assert (first.first_index, first.token_ids) == (2, [9])
    assert (first.prompt_logprobs, first.logprobs) == (None, expected(7, 1, 2))


def test_a_row_that_fails_ends_its_request_alone() -> None:
    bed = make_bed(step_tokens=8)
    bed.step()
    bed.step(failed="its logits are no numbers")
    last = bed.outputs[-1]
    assert (last.finish_reason, last.token_ids) == (FinishReason.ERROR, [])
    assert "no numbers" in last.error
    assert bed.core.unfinished_count() == 0


def test_an_empty_log_has_nothing() -> None:
    log = LogprobLog(3)
    assert (len(log), log.size, log.since(3)) == (0, 0, None)


def test_from_any_index_to_the_end() -> None:
    log = LogprobLog(3)
    log.append(of_row(0, 3, 1, 2), 3)
    log.append(of_row(0, 4, 2, 2), 4)
    assert log.since(3) == expected(3, 3, 2)
    assert log.since(0) == expected(3, 3, 2), "what a replay brought is not ours to tell"
    assert log.since(5) == expected(5, 1, 2)
    assert log.since(6) is None
    assert log.size == 3 * (2 * 2 + 1) * 4


def test_a_gap_is_a_bug() -> None:
    log = LogprobLog(1)
    with pytest.raises(AssertionError, match="1 to 2"):
        log.append(of_row(0, 2, 1, 1), 2)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_what_comes_again_is_kept_once(width: int, chunks: list[tuple[int, int]]) -> None:
    log = LogprobLog(1)
    for back, count in chunks:
        first = max(1, 1 + len(log) - back)
        log.append(of_row(0, first, count, width), first)
        log.check_invariants()
    assert log.since(1) == (expected(1, len(log), width) if len(log) else None)
