"""Floors of steps against a count by hand, the probe, the step driver, and one run of kernels."""

import itertools
import math
import pathlib
from collections.abc import Iterator

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.bench.steps import machine
from triolet.bench.steps.kernels import measure_kernels, usual_cases
from triolet.bench.steps.machine import Probe
from triolet.bench.steps.shapes import SMALL, TINY, shape_folder
from triolet.bench.steps.step_driver import (
    GROWTH_TOKENS,
    ModelSizes,
    RowWork,
    StepDriver,
    StepWork,
    blocks_for,
    decode_rows,
    prefill_rows,
)
from triolet.engine.config import EngineSettings
from triolet.engine.kernels.library import NativeUnavailable, machine_isas, native_fault
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.model_config.experts import Experts
from triolet.engine.step_messages import Step, StepResult
from triolet.engine.worker.executor_interface import WaitMask, WorkerExecutor
from triolet.engine.worker.executors import make_executor

SIZES = ModelSizes(
    layers=8,
    hidden_size=1024,
    intermediate_size=3072,
    vocab_size=32_000,
    heads=16,
    kv_heads=8,
    head_size=128,
)


def test_of_experts_those_are_read_that_tokens_go_to() -> None:
    experts = Experts(count=16, chosen=4, intermediate_size=512, normalized=True)
    mixed = attrs.evolve(SIZES, experts=experts, expert_layers=8)
    attention, router, expert = 1024 * 6 * 1024, 1024 * 16, 3 * 1024 * 512
    one = StepWork.of(mixed, decode_rows(1, 512))
    values = 8 * (attention + router + 4 * expert) + 1024 * 32_000
    assert one.weight_bytes == 2 * values
    assert one.operations == 2 * values + 4 * 512 * 16 * 128 * 8
    two = StepWork.of(mixed, decode_rows(2, 512))
    assert two.weight_bytes - one.weight_bytes == 2 * 8 * 3 * expert  # a quarter is met again
    assert two.operations == 2 * one.operations
    every = StepWork.of(mixed, prefill_rows(4096)).weight_bytes
    assert every == one.weight_bytes + 2 * 8 * 12 * expert


def test_a_decode_step_reads_every_weight_and_the_rows_kv() -> None:
    work = StepWork.of(SIZES, decode_rows(8, 512))
    matrices = sum(math.prod(s) for s in SMALL.tensors().values() if len(s) == 2)
    assert work.weight_bytes == 2 * matrices  # the tied embedding is the output's matrix
    assert work.kv_bytes == 8 * 512 * 32 * 1024  # 32 KiB a token
    assert work.operations == 8 * (2 * matrices + 4 * 512 * 16 * 128 * 8)


def test_a_prefill_needs_keys_and_values_of_each_token_and_one_that_samples() -> None:
    work = StepWork.of(SIZES, prefill_rows(512))
    keys, rest = 1024 * 2048, 1024 * 2 * 2048 + 3 * 1024 * 3072
    layers = 512 * (8 * keys + 7 * rest) + rest
    attention = 4 * 16 * 128 * (7 * (512 * 513 // 2) + 512)
    assert work.operations == 2 * layers + 2 * 1024 * 32_000 + attention


def test_a_chunk_that_samples_nothing_leaves_out_the_rest_of_the_last_layer() -> None:
    experts = Experts(count=16, chosen=4, intermediate_size=512, normalized=True)
    mixed = attrs.evolve(SIZES, experts=experts, expert_layers=8)
    row = RowWork(new=1, context=1)
    silent = StepWork.of(mixed, [attrs.evolve(row, samples=False)]).operations
    rest = 1024 * 2 * 2048 + 1024 * 16 + 4 * 3 * 1024 * 512
    spoken = 2 * (rest + 1024 * 32_000) + 4 * 16 * 128
    assert StepWork.of(mixed, [row]).operations - silent == spoken


def test_the_floor_is_reading_at_batch_1_and_multiplying_in_a_prefill() -> None:
    rates = {"read_gb_s": 50.0, "multiply_gflop_s": 1000.0}
    one = StepWork.of(SIZES, decode_rows(1, 512))
    assert one.floor_s(**rates) == pytest.approx((one.weight_bytes + one.kv_bytes) / 50e9)
    many = StepWork.of(SIZES, prefill_rows(512))
    assert many.floor_s(**rates) == pytest.approx(many.operations / 1e12 + many.kv_bytes / 50e9)


ROWS = st.lists(
    st.tuples(st.integers(1, 64), st.integers(0, 64)).map(
        lambda pair: RowWork(new=pair[0], context=pair[0] + pair[1])
    ),
    max_size=6,
)


@given(ROWS, st.integers(1, 32))
def test_chunks_multiply_as_much_as_the_whole(rows: list[RowWork], cut: int) -> None:
    for row in rows:
        if cut < row.new:
            first = RowWork(new=cut, context=row.context - row.new + cut, samples=False)
            second = RowWork(new=row.new - cut, context=row.context)
            parts = [StepWork.of(SIZES, [each]).operations for each in (first, second)]
            assert sum(parts) == StepWork.of(SIZES, [row]).operations


MINI = attrs.evolve(TINY, name="mini", vocab_size=600, hidden_size=32, intermediate_size=48)


@pytest.mark.slow
def test_every_case_is_timed_in_every_round(tmp_path: pathlib.Path) -> None:
    ended: list[int] = []
    found = measure_kernels(
        str(shape_folder(MINI, tmp_path)),
        usual_cases([1, 2], context=16, prefill=8, mixed=4),
        engine={"executor": "torch", "threads": 1},
        rounds=2,
        on_ended=ended.append,
    )
    assert len(ended) == 3 * 4
    assert [floor.threads for floor in found.machine_floors] == [1]
    assert [case.tokens for case in found.cases] == [1, 2, 8, 36]
    for case in found.cases:
        assert case.call_ms.runs == case.step_ms.runs == 2
        assert 0 < case.least_ms <= case.call_ms.most
        assert case.call_ms.least <= case.step_ms.most
        assert case.floor_ms.runs == (0 if native_fault() else 2)


SMALL_BYTES = 1 << 20


@pytest.fixture
def small() -> Iterator[Probe]:
    made = Probe(read_bytes=SMALL_BYTES)
    yield made
    made.close()


@pytest.mark.skipif(bool(native_fault()), reason="the kernels are not built here")
@pytest.mark.parametrize("isa", machine_isas())
def test_every_instruction_set_measures(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_ISA", isa)
    made = Probe(read_bytes=SMALL_BYTES)
    try:
        for threads in (1, 2):
            floor = made.measure(threads, tries=1, turns=100)
            assert (floor.isa, floor.threads) == (isa, threads)
            assert 0 < floor.read_gb_s < math.inf
            assert 0 < floor.multiply_gflop_s < math.inf
    finally:
        made.close()


@pytest.mark.skipif(bool(native_fault()), reason="the kernels are not built here")
def test_all_memory_is_read_by_any_number_of_threads(small: Probe) -> None:
    functions, size = small._functions, SMALL_BYTES
    assert functions is not None
    # One word differs from the others, wherever it is: the checksum tells.
    for place in (0, 64 * 1000 + 8, size - 8):
        sums = set()
        for threads, several in itertools.product((1, 2, 3), (False, True)):
            small._memory[place] = 1
            before = functions.triolet_probe_read(small._buffer, size, threads, several)
            small._memory[place] = 9
            sums.add(before ^ functions.triolet_probe_read(small._buffer, size, threads, several))
            small._memory[place] = 1
        assert sums == {1 ^ 9}


def test_without_kernels_memory_is_read_and_the_peak_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing() -> None:
        raise NativeUnavailable("not built")

    monkeypatch.setattr(machine, "open_library", nothing)
    made = Probe(read_bytes=SMALL_BYTES)
    floor = made.measure(1, tries=1)
    made.close()
    assert floor.isa == ""
    assert floor.read_gb_s > 0
    assert math.isnan(floor.multiply_gflop_s)


DECODING = decode_rows(3, 20)
PREFILL = RowWork(new=8, context=24)


@attrs.define(eq=False)
class Watched:
    """An executor that keeps the steps it was given."""

    executor: WorkerExecutor
    steps: list[Step] = attrs.field(factory=list)

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        self.steps.append(step)
        return self.executor.execute(step, wait_mask)

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} is not asked for")


@pytest.fixture
def driver() -> StepDriver:
    settings = EngineSettings(
        model=str(bundled_model_folder()),
        executor="null",
        max_num_seqs=4,
        kv_blocks=blocks_for([*DECODING, PREFILL], 16),
    )
    executor = make_executor(settings, 0, lambda seconds: None)
    ready = executor.load(lambda phase, fraction: None)
    watched: object = Watched(executor)
    return StepDriver(watched, ready.vocab_size, ready.kv_blocks, 16)  # type: ignore[arg-type]


def steps_of(driver: StepDriver) -> list[Step]:
    watched: object = driver.executor
    assert isinstance(watched, Watched)
    return watched.steps


def test_rows_decode_a_token_a_step_beside_prompts_that_come_and_go(driver: StepDriver) -> None:
    driver.begin(DECODING)
    for _ in range(5):
        result = driver.step([PREFILL])
        assert result.rows == [0, 1, 2, 3]
    steps = steps_of(driver)
    assert [step.token_counts for step in steps] == [[1, 1, 1], *[[1, 1, 1, 8]] * 5]
    assert [step.finished for step in steps] == [[], [], [3], [3], [3], [3]]


def test_every_block_is_written_once(driver: StepDriver) -> None:
    driver.touch(4)
    steps = steps_of(driver)
    blocks = [block for step in steps for new in step.new for block in new.block_ids]
    assert blocks == list(range(driver.blocks))
    assert max(len(step.rows) for step in steps) == 4
    driver.begin(DECODING)
    assert driver.step().rows == [0, 1, 2]


def test_rows_may_not_outgrow_their_blocks(driver: StepDriver) -> None:
    driver.begin(DECODING)
    for _ in range(GROWTH_TOKENS - 1):
        driver.step()
    with pytest.raises(AssertionError, match="outgrown"):
        driver.step()
