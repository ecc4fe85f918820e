"""Scheduler: chunks, order, preemption, credit, rows, and choices that share a prompt."""

import attrs
import pytest

from triolet.engine.core.request import Request, RequestStatus
from triolet.engine.core.scheduler import Scheduler
from triolet.engine.core.step_time import STEPS_MIN
from triolet.engine.messages import FinishReason
from triolet.engine.step_messages import Step
from triolet.tests.engine.core.driver import make_scheduler, new_request

MODEL_LEN = 24


@attrs.define(eq=False)
class Bench:
    """A scheduler with a worker that always samples token 1 and never stops."""

    scheduler: Scheduler
    arrivals: int = 0

    def add(self, prompt: int, *, credit: int | None = None, merge_s: float = 0.0) -> Request:
        self.arrivals += 1
        request = new_request(
            f"r{self.arrivals}",
            arrival=self.arrivals,
            prompt=prompt,
            credit=credit,
            max_model_len=MODEL_LEN,
            merge_s=merge_s,
        )
        self.scheduler.add(request)
        return request

    def step(self) -> Step:
        scheduled = self.scheduler.schedule()
        assert scheduled is not None
        self.scheduler.check_invariants()
        self.apply()
        return scheduled.step

    def apply(self) -> None:
        for request in self.scheduler.complete().sampling:
            if not request.is_finished:
                request.token_ids.append(1)
                if len(request.token_ids) >= request.length_max:
                    self.scheduler.end(request, FinishReason.LENGTH)
        self.scheduler.check_invariants()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()


def bench(
    *,
    kv_blocks: int = 12,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 8,
    large_step_tokens: int = 0,
) -> Bench:
    scheduler = make_scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_blocks=kv_blocks,
    )
    scheduler.large_step_tokens = large_step_tokens
    return Bench(scheduler)


def has_status(request: Request, status: RequestStatus) -> bool:
    """A call, so that the type checker does not believe the status to be constant."""
    return request.status is status


def test_long_prompt_comes_in_chunks_and_samples_with_the_last() -> None:
    b = bench()
    b.add(18)
    steps = [b.step() for _ in range(4)]
    assert [step.token_counts for step in steps] == [[8], [8], [2], [1]]
    assert [step.samples for step in steps] == [[False], [False], [True], [True]]
    assert len(steps[0].new[0].block_ids) == 5, "blocks for the whole prompt at once"
    assert [step.number for step in steps] == [1, 2, 3, 4]


def test_one_step_mixes_prompts_and_decodes() -> None:
    b = bench()
    b.add(3)
    b.step()
    b.add(20)
    b.add(2)
    step = b.step()
    assert step.rows == [0, 1]
    assert step.token_counts == [1, 7]
    assert step.samples == [True, False]


def test_long_prompt_leaves_a_token_to_all_behind() -> None:
    b = bench(max_num_batched_tokens=6)
    first = b.add(3, credit=0)
    b.add(3)
    b.step()
    b.scheduler.end(first, FinishReason.ABORT)
    # As after a preemption: an older request than the one that decodes has everything to do.
    decoding, recomputed = b.scheduler.running[0], b.add(20)
    decoding.arrival, recomputed.arrival = 3, 2
    assert b.step().token_counts == [1, 5]
    step = b.step()
    assert step.rows == [recomputed.row, decoding.row]
    assert step.token_counts == [5, 1]


def test_steps_are_larger_while_none_is_interactive() -> None:
    b = bench(large_step_tokens=16)
    merged = [b.add(14, merge_s=1.0), b.add(14, merge_s=1.0)]
    assert b.step().token_counts == [14, 2]
    interactive = b.add(9)
    assert b.step().token_counts == [1, 12], "it may not be in a step so large"
    assert b.step().token_counts == [1, 1, 6], "nor does its coming make one"
    assert b.step().token_counts == [1, 1, 3]
    for request in (interactive, *merged):
        b.scheduler.end(request, FinishReason.ABORT)
    b.add(14, merge_s=1.0)
    assert b.step().token_counts == [14]


def test_steps_are_no_larger_before_their_time_is_known() -> None:
    def second_step(times_s: list[float]) -> int:
        b = bench(kv_blocks=40, large_step_tokens=16)
        b.scheduler.step_time_target_s = 1000.0
        for _ in range(3):
            b.add(20, merge_s=1.0)
        assert sum(b.step().token_counts) == 8, "nothing was computed yet"
        for seconds in times_s:
            b.scheduler.step_times.learn(8, seconds)
        return sum(b.step().token_counts)

    assert second_step([]) == 16, "an executor that tells no times"
    assert second_step([0.1]) == second_step([0.1] * (STEPS_MIN - 1)) == 8, "too few to know"
    assert second_step([0.1] * STEPS_MIN) == 16


def test_no_more_run_than_the_budget_has_tokens() -> None:
    b = bench(max_num_batched_tokens=2)
    for _ in range(4):
        b.add(1)
    b.run(2)
    assert len(b.scheduler.running) == 2


def test_head_of_the_queue_is_not_overtaken() -> None:
    b = bench(kv_blocks=6)
    b.add(16)
    b.step()
    b.add(12)
    small = b.add(1)
    b.run(2)
    assert has_status(small, RequestStatus.WAITING)
    assert len(b.scheduler.running) == 1


def test_youngest_yields_when_blocks_run_out() -> None:
    b = bench(kv_blocks=6)
    first, second, third = b.add(4), b.add(4), b.add(8)
    b.run(2)
    while has_status(third, RequestStatus.RUNNING):
        step = b.step()
    assert step.finished == [2]
    assert step.rows == [0, 1]
    assert not step.new, "nobody is admitted in a step that has preempted"
    assert third.computed_tokens == 0
    assert b.scheduler.waiting.first() is third
    assert b.scheduler.preemptions == 1
    while not has_status(third, RequestStatus.RUNNING):
        step = b.step()
    assert first.is_finished or second.is_finished or has_status(second, RequestStatus.PREEMPTED)
    assert step.new[0].token_ids == third.token_ids[: len(step.new[0].token_ids)]
    assert step.new[0].prompt_tokens == 8


def test_request_that_is_alone_among_runnable_yields_nothing_to_itself() -> None:
    b = bench(kv_blocks=6)
    request = b.add(4)
    while not request.is_finished:
        b.step()
    assert len(request.token_ids) == MODEL_LEN
    assert b.scheduler.preemptions == 0


def test_paused_request_yields_before_a_younger_one_that_runs() -> None:
    b = bench(kv_blocks=6)
    paused, running = b.add(8, credit=1), b.add(8)
    b.step()
    while has_status(paused, RequestStatus.RUNNING):
        b.step()
    assert has_status(paused, RequestStatus.PREEMPTED)
    while not running.is_finished:
        b.step()
    assert not b.scheduler.has_work()
    assert b.scheduler.schedule() is None
    paused.grant(None)
    b.scheduler.update(paused)
    assert b.step().new[0].computed_tokens == 0


def test_paused_request_keeps_its_place_while_it_is_not_needed() -> None:
    b = bench()
    request = b.add(3, credit=2)
    b.run(2)
    assert not b.scheduler.has_work()
    assert b.scheduler.paused_count() == 1
    request.grant(3)
    b.scheduler.update(request)
    step = b.step()
    assert (step.new, step.rows, step.token_counts) == ([], [0], [1])


@pytest.mark.parametrize(
    ("max_num_seqs", "kv_blocks"), [(2, 12), (3, 6)], ids=["for a row", "for blocks"]
)
def test_paused_requests_yield_to_a_waiting_one(max_num_seqs: int, kv_blocks: int) -> None:
    b = bench(max_num_seqs=max_num_seqs, kv_blocks=kv_blocks)
    older, younger = b.add(5, credit=1), b.add(6, credit=1)
    b.run(2)
    assert not b.scheduler.has_work()
    newcomer = b.add(12)
    step = b.step()
    assert has_status(newcomer, RequestStatus.RUNNING)
    assert has_status(younger, RequestStatus.PREEMPTED)
    assert has_status(older, RequestStatus.RUNNING), "no more of them than needed"
    assert step.finished == [1]
    assert step.new[0].row == 1, "a row that this step names is free in it"


def test_paused_requests_do_not_yield_in_vain() -> None:
    b = bench(kv_blocks=6)
    paused, running = b.add(4, credit=1), b.add(12)
    b.run(3)
    b.add(20)
    b.step()
    assert has_status(paused, RequestStatus.RUNNING)
    assert has_status(running, RequestStatus.RUNNING)


def test_rows_are_the_smallest_and_free_once_named() -> None:
    b = bench()
    requests = [b.add(1) for _ in range(3)]
    assert b.step().rows == [0, 1, 2]
    b.scheduler.end(requests[0], FinishReason.ABORT)
    late = b.add(1)
    step = b.step()
    assert step.finished == [0]
    assert late.row == 0
    assert step.rows == [1, 2, 0]


def test_end_in_flight_keeps_row_and_blocks_until_the_step_is_complete() -> None:
    b = bench()
    request = b.add(3)
    scheduled = b.scheduler.schedule()
    assert scheduled is not None
    assert b.scheduler.schedule() is None
    b.scheduler.end(request, FinishReason.ABORT)
    b.scheduler.check_invariants()
    assert b.scheduler.kv_cache.pool.free_count == 11
    b.apply()
    assert b.scheduler.kv_cache.pool.free_count == 12
    assert not b.scheduler.has_work()
