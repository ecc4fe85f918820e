"""Cost of the engine core itself in a step.

    python -m triolet.bench engine_core

A worker that answers at once stands for the model; only `schedule` and `finish_step` are timed, in
CPU time of this process.
"""

import gc
import statistics
import time

from ...engine.config import EngineSettings
from ...engine.core.engine_core import EngineCore
from ...engine.messages import AddRequest
from ...engine.sampling_params import SamplingParams
from ...engine.step_messages import Step, StepResult, WorkerReady
from .calibration import Calibration, Target
from .words import argument_parser, at_least_one

VOCAB = 32_000
BLOCK_TOKENS = 16
# {running: µs a step}.
TARGETS_US = {64: Target(600)}


def make_core(running: int, length: int) -> EngineCore:
    """An engine with room for `running` requests of `length` tokens."""
    settings = EngineSettings(
        model="none", max_num_seqs=running, max_num_batched_tokens=256, block_tokens=BLOCK_TOKENS
    )
    ready = WorkerReady(
        kv_blocks=running * -(-length // BLOCK_TOKENS),
        max_model_len=length,
        vocab_size=VOCAB,
        numerics_id="none",
        bitwise=True,
    )
    return EngineCore(settings, ready)


def answer(step: Step) -> StepResult:
    """A token for each row that samples."""
    rows = [row for row, samples in zip(step.rows, step.samples, strict=True) if samples]
    return StepResult(step.number, rows, [step.number % VOCAB] * len(rows))


def measure(running: int, frontends: int, prompt: int, tokens: int) -> list[float]:
    """Microseconds of schedule plus finish_step in each step where all of them decode."""
    core = make_core(running, prompt + tokens)
    for index in range(running):
        request = AddRequest(
            request_id=f"r{index}",
            attempt=1,
            prompt_token_ids=[1] * prompt,
            eos_token_ids=[VOCAB - 1],
            sampling=SamplingParams(max_tokens=tokens, seed=index),
            in_columns=True,
        )
        core.add(index % frontends, request)
    spent_us = []
    while core.has_work():
        started_s = time.process_time()
        step = core.schedule(0.0)
        scheduled_s = time.process_time()
        assert step is not None
        result = answer(step)
        answered_s = time.process_time()
        core.finish_step(result, 0.0)
        finished_s = time.process_time()
        if len(step.rows) == running and max(step.token_counts) == 1:
            spent_us.append(1e6 * (finished_s - answered_s + scheduled_s - started_s))
    return spent_us


def main() -> None:
    """Print microseconds per step and per token."""
    parser = argument_parser(__doc__)
    parser.add_argument("--running", type=at_least_one, nargs="*", default=[1, 16, 64, 256])
    parser.add_argument("--frontends", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=1000)
    options = parser.parse_args()
    gc.freeze()  # as the engine does once it is ready
    for running in options.running:
        calibration = Calibration()
        calibration.take()
        spent_us = measure(running, options.frontends, options.prompt, options.tokens)
        calibration.take()
        median_us = statistics.median(spent_us)
        p99_us = statistics.quantiles(spent_us, n=100)[98]
        print(
            f"{running:4} running: {median_us:7.1f} µs per step (p99 {p99_us:7.1f}),"
            f" {median_us / running:5.2f} µs per token, {len(spent_us)} steps"
        )
        if target := TARGETS_US.get(running):
            print(f"  {target.verdict(median_us, calibration.factor())}")
            print(f"  {calibration.describe()}", flush=True)


if __name__ == "__main__":
    main()
