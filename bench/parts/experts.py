"""Steps of a mixture of experts, by every executor that serves it: native, torch, torch bitwise.

    python -m triolet.bench experts

Qwen3-MoE with random weights: hidden 1024, 4 layers of 16 experts of which a token has 4, 320 MB in
bfloat16. Decode steps, context 512, all cores, and one prompt.
"""

import json
import pathlib
import tempfile
from typing import Any

from rich.console import Console

from ..steps.kernels import Case, measure_kernels
from ..steps.machine import look_at_machine
from ..steps.step_driver import decode_rows, prefill_rows
from ..tables import kernel_table, machine_table
from .words import argument_parser

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
EXECUTORS: tuple[dict[str, Any], ...] = (
    {"executor": "native"},
    {"executor": "torch", "bitwise": False},
    {"executor": "torch", "bitwise": True},
)
BATCHES = (1, 8, 32)
CONTEXT, PREFILL = 512, 256
ROUNDS = 3
COLUMNS = 140


def main() -> None:
    """Print a table for each executor."""
    argument_parser(__doc__).parse_args()
    console = Console(width=COLUMNS)
    console.print(look_at_machine().describe(), markup=False, highlight=False)
    cases = [Case(name=f"decode {b}", decoding=decode_rows(b, CONTEXT)) for b in BATCHES]
    cases.append(Case(name=f"prefill {PREFILL}", prefills=prefill_rows(PREFILL)))
    with tempfile.TemporaryDirectory(prefix="triolet-experts-") as base:
        (pathlib.Path(base) / "config.json").write_text(json.dumps(CONFIG))
        for settings in EXECUTORS:
            engine = {**settings, "load_format": "dummy"}
            found = measure_kernels(base, cases, engine=engine, rounds=ROUNDS)
            console.print(machine_table(found.machine_floors))
            console.print(f"bitwise: {settings.get('bitwise', True)}", kernel_table(found))


if __name__ == "__main__":
    main()
