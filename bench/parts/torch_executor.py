"""Cost of a decode step of the torch executor.

    python -m triolet.bench torch_executor

A dummy model of the bundled model's size (3.5 M parameters), steps as a worker executes them:
forward pass, sampling, bookkeeping. Wall and CPU time in ms; the least of all steps is what the
code costs, the median what this machine made of it.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time

from ...engine.config import EngineSettings
from ...engine.step_messages import Mask, NewRow, RowSampling, Step
from ...engine.worker.torch.executor import TorchExecutor

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1500,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
BLOCK_TOKENS = 16


def no_mask() -> Mask:
    """No row asks for one."""
    raise AssertionError("no row is masked")


def make_executor(folder: pathlib.Path, rows: int, arguments: argparse.Namespace) -> TorchExecutor:
    """A loaded dummy model with room for all rows."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    settings = EngineSettings(
        model=str(folder),
        load_format="dummy",
        threads=arguments.threads,
        bitwise=not arguments.plain,
        max_num_seqs=rows,
    )
    executor = TorchExecutor(settings, 0)
    executor.load(lambda phase, fraction: None)
    return executor


def measure(executor: TorchExecutor, rows: int, arguments: argparse.Namespace) -> None:
    """Prefill every row alone, then decode all of them together."""
    context = arguments.context
    blocks = -(-(context + arguments.steps + 1) // BLOCK_TOKENS)
    for row in range(rows):
        sampling = RowSampling(
            temperature=arguments.temperature, top_k=0, top_p=0.95, min_p=0.0, seed=row
        )
        new = NewRow(
            row=row,
            token_ids=[(row * 7 + place) % 1500 for place in range(context)],
            prompt_tokens=context,
            computed_tokens=0,
            block_ids=list(range(row * blocks, (row + 1) * blocks)),
            sampling=sampling,
        )
        step = Step(number=row, new=[new], rows=[row], token_counts=[context], samples=[True])
        executor.execute(step, no_mask)
    walls, processors = [], []
    for number in range(arguments.steps):
        step = Step(
            number=1000 + number,
            rows=list(range(rows)),
            token_counts=[1] * rows,
            samples=[True] * rows,
        )
        wall, processor = time.perf_counter(), time.process_time()
        executor.execute(step, no_mask)
        walls.append((time.perf_counter() - wall) * 1000)
        processors.append((time.process_time() - processor) * 1000)
    print(
        f"batch {rows:3}  context {context:5}  wall min {min(walls):6.2f} median"
        f" {statistics.median(walls):6.2f}  cpu min {min(processors):6.2f} ms/step"
    )


def main() -> None:
    """Measure batches 1, 16 and 64."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--plain", action="store_true", help="not bitwise")
    arguments = parser.parse_args()
    for rows in (1, 16, 64):
        with tempfile.TemporaryDirectory() as folder:
            measure(make_executor(pathlib.Path(folder), rows, arguments), rows, arguments)


if __name__ == "__main__":
    main()
