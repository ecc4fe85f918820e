"""Cost of sampling 64 rows, vocabulary 32 000, with the native sampler.

    python -m triolet.bench sampling

Milliseconds of the call with its Python, as decode steps that follow each other make it, all cores:
the median is what this machine made of it, the least what the code costs where nothing else runs;
CPU of one thread is what it costs anywhere. Peaked logits have a nucleus of some tens of tokens, as
those of real models do; flat ones have one of thousands.
"""

import statistics
import time

import attrs
import numpy as np

from ...engine.host import cores
from ...engine.kernels.binding import declare_functions
from ...engine.kernels.library import open_library
from ...engine.step_messages import NewRow, RowSampling, Step
from ...engine.worker.executor_interface import StepOutcome
from ...engine.worker.input_batch import InputBatch
from ...engine.worker.native.sampling import NativeSampling
from ..steps.machine import look_at_machine
from .words import argument_parser

ROWS = 64
VOCAB = 32_000
PROMPT = 256
RUNS = 25
PEAKS, PEAK = 40, 9.0
PLAIN = RowSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)
CASES = (
    ("greedy", attrs.evolve(PLAIN, temperature=0.0), "flat", 0.2),
    ("temperature", PLAIN, "flat", 1.5),
    ("top-p .95, peaked", attrs.evolve(PLAIN, top_p=0.95), "peaked", 3.5),
    ("top-p .95, flat", attrs.evolve(PLAIN, top_p=0.95), "flat", 8.0),
    (
        "penalties, top-p .95, logprobs 5",
        attrs.evolve(
            PLAIN,
            top_p=0.95,
            logprobs=5,
            repetition_penalty=1.1,
            frequency_penalty=0.1,
            presence_penalty=0.1,
        ),
        "peaked",
        6.0,
    ),
)


def measure(sampling: RowSampling, logits: np.ndarray, threads: int) -> list[tuple[float, float]]:
    """Milliseconds of each run: wall and CPU."""
    batch = InputBatch(rows_max=ROWS, blocks=ROWS, block_tokens=2**20, vocab_size=VOCAB)
    functions = declare_functions(open_library())
    native = NativeSampling.of(batch, functions, threads=threads, length=PROMPT + RUNS + 8)
    chance = np.random.default_rng(2)
    new = [
        NewRow(
            row=row,
            token_ids=chance.integers(0, VOCAB, PROMPT).tolist(),
            prompt_tokens=PROMPT,
            computed_tokens=PROMPT - 1,
            block_ids=[row],
            sampling=attrs.evolve(sampling, seed=row),
        )
        for row in range(ROWS)
    ]
    positions, tokens = np.zeros(ROWS, np.int32), np.zeros(ROWS, np.int32)
    ours = logits.copy()
    draw = native.prepare(list(range(ROWS)), ours, positions=positions, tokens=tokens)
    spent_ms = []
    for number in range(RUNS + 2):
        step = Step(
            number=number,
            new=new if number == 0 else [],
            rows=list(range(ROWS)),
            token_counts=[1] * ROWS,
            samples=[True] * ROWS,
        )
        batch.take_step(step)
        native.take_step(step)
        positions[:] = number
        np.copyto(ours, logits)  # the call edits them
        began_s, cpu_s = time.perf_counter(), time.process_time()
        native.begin(draw)
        native.draw(draw)
        found = native.end(draw, StepOutcome())
        wall_ms = (time.perf_counter() - began_s) * 1e3
        spent_ms.append((wall_ms, (time.process_time() - cpu_s) * 1e3))
        batch.finish_step(step, found)
    return spent_ms[2:]


def main() -> None:
    """Print the table."""
    argument_parser(__doc__).parse_args()
    print(look_at_machine().describe())
    print("targets are of Zen 5 with AVX512-BF16; what bounds sampling there is not on record, so")
    print("nothing is scaled")
    chance = np.random.default_rng(1)
    flat = chance.standard_normal((ROWS, VOCAB), dtype=np.float32)
    peaked = flat.copy()
    for row in peaked:
        row[chance.integers(0, VOCAB, PEAKS)] += PEAK
    threads = cores()
    print(f"{ROWS} rows, vocabulary {VOCAB}, {threads} threads; ms")
    for name, sampling, shape, target in CASES:
        logits = peaked if shape == "peaked" else flat
        walls = [wall for wall, _ in measure(sampling, logits, threads)]
        cpus = [cpu for _, cpu in measure(sampling, logits, 1)]
        print(
            f"{name:34} median {statistics.median(walls):7.3f}   least {min(walls):7.3f}"
            f"   target ≤ {target}   CPU of one thread {min(cpus):7.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
