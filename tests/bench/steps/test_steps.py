"""Floors of steps against a count by hand, the probe, the step driver, and one run of kernels."""

import math
import pathlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.bench.steps.kernels import measure_kernels, usual_cases
from triolet.bench.steps.machine import Probe
from triolet.bench.steps.shapes import SMALL, TINY, shape_folder
from triolet.bench.steps.step_driver import (
    ModelSizes,
    RowWork,
    StepDriver,
    StepWork,
    blocks_for,
    decode_rows,
    prefill_rows,
)
from triolet.engine.config import EngineSettings
from triolet.engine.kernels.library import machine_isas, native_fault
from triolet.engine.model.bundled import bundled_model_folder
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


def test_a_decode_step_reads_every_weight_and_the_rows_kv() -> None:
    work = StepWork.of(SIZES, decode_rows(8, 512))
    matrices = sum(math.prod(s) for s in SMALL.tensors().values() if len(s) == 2)
    assert work.weight_bytes == 2 * matrices  # the tied embedding is the output's matrix
    assert work.kv_bytes == 8 * 512 * 32 * 1024  # 32 KiB a token
    assert work.operations == 8 * (2 * matrices + 4 * 512 * 16 * 128 * 8)


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


def test_every_block_is_written_once(driver: StepDriver) -> None:
    driver.touch(4)
    steps = steps_of(driver)
    blocks = [block for step in steps for new in step.new for block in new.block_ids]
    assert blocks == list(range(driver.blocks))
    assert max(len(step.rows) for step in steps) == 4
    driver.begin(DECODING)
    assert driver.step().rows == [0, 1, 2]
