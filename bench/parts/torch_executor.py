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

from ...engine.config import BLOCK_TOKENS, EngineSettings
from ...engine.step_messages import RowSampling
from ...engine.worker.torch.executor import TorchExecutor
from ..steps.step_driver import StepDriver, blocks_for, decode_rows, prefill_rows
from .words import argument_parser

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
STEPS = 40


def open_driver(folder: pathlib.Path, options: argparse.Namespace) -> StepDriver:
    """A loaded dummy model with room for all rows, whose KV memory was written once."""
    (folder / "config.json").write_text(json.dumps(SHAPES[options.shape]))
    settings = EngineSettings(
        model=str(folder),
        load_format="dummy",
        device=options.device,
        threads=options.threads,
        bitwise=not options.plain,
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=max(*BATCHES, options.context),
        kv_blocks=blocks_for(decode_rows(max(BATCHES), options.context), BLOCK_TOKENS),
    )
    executor = TorchExecutor(settings, 0)
    ready = executor.load(lambda phase, fraction: None)
    print(f"{options.shape}, {options.device}: {'' if ready.bitwise else 'not '}bitwise")
    sampling = RowSampling(temperature=options.temperature, top_k=0, top_p=0.95, min_p=0.0, seed=0)
    driver = StepDriver(executor, ready.vocab_size, ready.kv_blocks, BLOCK_TOKENS, sampling)
    driver.touch(max(BATCHES))
    return driver


def measure(driver: StepDriver, rows: int, context: int) -> None:
    """Prefill so many prompts one after another, then decode so many rows together."""
    driver.begin([])
    began_s = time.perf_counter()
    for _ in range(rows):
        driver.step(prefill_rows(context))
    prefilled = rows * context / (time.perf_counter() - began_s)
    driver.begin(decode_rows(rows, context))
    walls, processors = [], []
    for _ in range(STEPS):
        wall_s, processor_s = time.perf_counter(), time.process_time()
        driver.step()
        walls.append((time.perf_counter() - wall_s) * 1000)
        processors.append((time.process_time() - processor_s) * 1000)
    print(
        f"batch {rows:3}  context {context:5}  wall min {min(walls):6.2f} median"
        f" {statistics.median(walls):6.2f}  cpu min {min(processors):6.2f} ms/step"
        f"  prefill {prefilled:6.0f} tokens/s",
        flush=True,
    )


def main() -> None:
    """Measure the batches, one after another."""
    parser = argument_parser(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="bundled")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--plain", action="store_true", help="not bitwise")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        driver = open_driver(pathlib.Path(folder), options)
        for rows in BATCHES:
            measure(driver, rows, options.context)


if __name__ == "__main__":
    main()
