"""Steps of the executor alone, beside the machine's floor measured in turns with them.

    python -m tests.benchmarks kernels

The shapes that figures are given for, all cores, context 512: decode steps, one prompt, and a part
of a prompt beside 32 decodes. `triolet bench floor MODEL` does it for any model.
"""

from rich.console import Console

from triolet.fuzz.bench.kernels import measure_kernels, usual_cases
from triolet.fuzz.bench.machine import look_at_machine
from triolet.fuzz.bench.shapes import SHAPES, shape_folder
from triolet.fuzz.bench.tables import kernel_table, machine_table

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
COLUMNS = 140


def main() -> None:
    """Print the tables."""
    console = Console(width=COLUMNS)
    console.print(look_at_machine().describe(), markup=False, highlight=False)
    cases = usual_cases(BATCHES, context=CONTEXT, prefill=PREFILL, mixed=MIXED)
    for name, shape in SHAPES.items():
        found = measure_kernels(str(shape_folder(shape)), cases, engine={}, rounds=ROUNDS)
        console.print(machine_table(found.machine_floors))
        console.print(f"{name}:", kernel_table(found, TARGETS[name]))


if __name__ == "__main__":
    main()
