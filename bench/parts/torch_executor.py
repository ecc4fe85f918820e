"""Cost of a decode step of the torch executor, and its prefill.

    python -m triolet.bench torch_executor
    python -m triolet.bench torch_executor --device cuda --shape 8B --context 512

A dummy model, by default of the bundled model's size (3.5 M parameters), steps as a worker executes
them: forward pass, sampling, bookkeeping. Wall and CPU time in ms; the least of all steps is what
the code costs, the median what this machine made of it.
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
# The sizes of Qwen3 0.6B and Llama 3 8B.
LARGER = {"vocab_size": 128256, "head_dim": 128, "num_key_value_heads": 8}
SHAPES = {
    "bundled": CONFIG,
    "0.6B": CONFIG | LARGER | {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "vocab_size": 151936,
        "max_position_embeddings": 4096,
    },
    "8B": CONFIG | LARGER | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "tie_word_embeddings": False, "max_position_embeddings": 4096,
    },
}  # fmt: skip
BATCHES = (1, 16, 64)
BLOCK_TOKENS = 16


def no_mask() -> Mask:
    """No row asks for one."""
    raise AssertionError("no row is masked")


def make_executor(folder: pathlib.Path, arguments: argparse.Namespace) -> TorchExecutor:
    """A loaded dummy model with room for all rows."""
    (folder / "config.json").write_text(json.dumps(SHAPES[arguments.shape]))
    settings = EngineSettings(
        model=str(folder),
        load_format="dummy",
        device=arguments.device,
        threads=arguments.threads,
        bitwise=not arguments.plain,
        max_num_seqs=max(BATCHES),
    )
    executor = TorchExecutor(settings, 0)
    ready = executor.load(lambda phase, fraction: None)
    print(f"{arguments.shape}, {arguments.device}: {'' if ready.bitwise else 'not '}bitwise")
    return executor


def measure(executor: TorchExecutor, rows: int, arguments: argparse.Namespace) -> None:
    """Prefill every row alone, then decode all of them together."""
    context = arguments.context
    blocks = -(-(context + arguments.steps + 1) // BLOCK_TOKENS)
    begin = time.perf_counter()
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
    prefilled = rows * context / (time.perf_counter() - begin)
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
    executor.execute(Step(number=0, finished=list(range(rows))), no_mask)
    print(
        f"batch {rows:3}  context {context:5}  wall min {min(walls):6.2f} median"
        f" {statistics.median(walls):6.2f}  cpu min {min(processors):6.2f} ms/step"
        f"  prefill {prefilled:6.0f} tokens/s"
    )


def main() -> None:
    """Measure the batches, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="bundled")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--plain", action="store_true", help="not bitwise")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        executor = make_executor(pathlib.Path(folder), arguments)
        for rows in BATCHES:
            measure(executor, rows, arguments)


if __name__ == "__main__":
    main()
