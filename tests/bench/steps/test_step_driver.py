"""Steps without an engine: the null executor refuses what does not fit together."""

import attrs
import pytest

from triolet.bench.steps.floor_model import RowWork, decode_rows
from triolet.bench.steps.step_driver import GROWTH_TOKENS, StepDriver, blocks_for
from triolet.engine.config import EngineSettings
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.step_messages import Step, StepResult
from triolet.engine.worker.executor_interface import WaitMask, WorkerExecutor
from triolet.engine.worker.executors import make_executor

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


def test_another_case_begins_with_other_rows(driver: StepDriver) -> None:
    driver.begin(DECODING)
    driver.step()
    driver.begin([])
    assert driver.step([PREFILL]).rows == [0]
    driver.begin(DECODING)
    assert driver.step().rows == [0, 1, 2]


def test_rows_may_not_outgrow_their_blocks(driver: StepDriver) -> None:
    driver.begin(DECODING)
    for _ in range(GROWTH_TOKENS - 1):
        driver.step()
    with pytest.raises(AssertionError, match="outgrown"):
        driver.step()


def test_more_rows_than_there_are_blocks_for_are_refused(driver: StepDriver) -> None:
    with pytest.raises(AssertionError, match="too few"):
        driver.begin(decode_rows(8, 20))
