"""Steps of the executor alone, beside the machine's floor measured in turns with them.

    python -m triolet.bench kernels

The shapes that figures are given for, all cores, context 512: decode steps, one prompt, and a part
of a prompt beside 32 decodes. Of the targets in ms those are scaled by the floor that memory and
products set there and here; a model that stays in a processor's cache has another floor, which is
not on record. `triolet bench floor MODEL` does it for any model.
"""

from rich.console import Console

from ...engine.model_config.config import load_model_config
from ..steps.kernels import KernelFigures, measure_kernels, usual_cases
from ..steps.machine import look_at_machine
from ..steps.shapes import SHAPES, shape_folder
from ..steps.step_driver import ModelSizes, StepWork
from ..tables import kernel_table, machine_table
from .calibration import Target
from .words import argument_parser

BATCHES = (1, 8, 32, 64)
CONTEXT, PREFILL, MIXED = 512, 512, 256
ROUNDS = 5
TARGETS = {
    "small": {
        "decode 1": "share ≥ .90",
        "decode 8": "share ≥ .75",
        "decode 32": "share ≥ .62, aim .75",
        "decode 64": "share ≥ .62, aim .75",
        "prefill 512": "share ≥ .62",
        "256 new on 512 + 32 decodes": "share ≥ .52",
    },
    "tiny": {"decode 1": "call ≤ 0.12 ms", "decode 64": "call ≤ 3 ms"},
}
# Figures of tiny that memory and products bound: "decode 1" reads 10 MB, which stay in a cache.
SCALED_MS = {"decode 64": Target(3.0)}
# Ceilings of the machine of the targets with two threads, by the project's reference figures of
# model execution (memory 48 to 50 GB/s; bf16 products in registers).
READ_GB_S, MULTIPLY_GFLOP_S = 49.0, 1141.0
COLUMNS = 140


def print_scaled(found: KernelFigures, sizes: ModelSizes) -> None:
    """Calls in ms as the machine of the targets would make them."""
    cases = usual_cases(BATCHES, context=CONTEXT, prefill=PREFILL, mixed=MIXED)
    for case, figures in zip(cases, found.cases, strict=True):
        if target := SCALED_MS.get(case.name):
            work = StepWork.of(sizes, case.rows())
            floor_s = work.floor_s(read_gb_s=READ_GB_S, multiply_gflop_s=MULTIPLY_GFLOP_S)
            factor = figures.floor_ms.median / (floor_s * 1e3)
            call_ms = figures.call_ms.median
            print(f"{case.name}: call {call_ms:.3f} ms {target.verdict(call_ms, factor)}")


def main() -> None:
    """Print the tables."""
    argument_parser(__doc__).parse_args()
    console = Console(width=COLUMNS)
    console.print(look_at_machine().describe(), markup=False, highlight=False)
    cases = usual_cases(BATCHES, context=CONTEXT, prefill=PREFILL, mixed=MIXED)
    for name, shape in SHAPES.items():
        found = measure_kernels(str(shape_folder(shape)), cases, engine={}, rounds=ROUNDS)
        console.print(machine_table(found.machine_floors))
        console.print(f"{name}:", kernel_table(found, TARGETS[name]))
        if name == "tiny":
            print_scaled(found, ModelSizes.of(load_model_config(shape_folder(shape))))


if __name__ == "__main__":
    main()
