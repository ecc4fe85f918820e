"""An executor from folder to token: what is the same whichever computes."""

import pathlib
from typing import Any

from triolet.engine.config import EngineSettings
from triolet.engine.messages import BootPhase
from triolet.engine.model.weight_folder import SINGLE_FILE
from triolet.engine.step_messages import Mask, NewRow, RowSampling, Step, StepResult, WorkerReady
from triolet.engine.worker.executor_interface import WorkerExecutor


def settings_of(folder: pathlib.Path, **changes: Any) -> EngineSettings:
    values = {"load_format": "dummy", "max_num_seqs": 4, "threads": 1}
    return EngineSettings(model=str(folder), **{**values, **changes})


def no_mask() -> Mask:
    raise AssertionError("no row is masked")


def boot(executor: WorkerExecutor) -> WorkerReady:
    return executor.load(lambda phase, fraction: None)


def check_boot(executor: WorkerExecutor) -> None:
    """Of the folder of `write_model`, with four sequences: limits, and progress phase by phase."""
    progress: list[tuple[str, float]] = []
    found = executor.load(lambda *report: progress.append(report))
    assert (found.vocab_size, found.max_model_len, found.kv_blocks) == (101, 512, 4 * 32)
    assert found.bitwise
    phases = [BootPhase.LOAD_WEIGHTS, BootPhase.KV_MEMORY, BootPhase.HASH_FILES]
    assert list(dict.fromkeys(phase for phase, _ in progress)) == phases
    for phase in phases:
        fractions = [fraction for name, fraction in progress if name == phase]
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)


def first_step(executor: WorkerExecutor) -> StepResult:
    """A prompt of three tokens in one step, and its first token."""
    row = NewRow(
        row=0,
        token_ids=[5, 6, 7],
        prompt_tokens=3,
        computed_tokens=0,
        block_ids=[3],
        sampling=RowSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=4),
    )
    step = Step(number=9, new=[row], rows=[0], token_counts=[3], samples=[True])
    result = executor.execute(step, no_mask)
    assert (result.number, result.rows) == (9, [0])
    assert result.compute_s > 0
    return result


def change_a_weight(folder: pathlib.Path) -> None:
    """One bit of the last value."""
    content = bytearray((folder / SINGLE_FILE).read_bytes())
    content[-1] ^= 1
    (folder / SINGLE_FILE).write_bytes(content)
