"""Prints how far our numbers are from transformers' in float32, and fails where too far.

    python -m tests.accuracy [--small]

The first table is of logits, for a random model of each family in bfloat16: whatever computes in
bfloat16 here must be nearer than transformers in bfloat16 is. The second is the perplexity of the
bundled model on text it has not seen: within 0.1 %.
"""

import argparse
import pathlib
import sys
import tempfile

from triolet.engine.model.bundled import bundled_model_folder

from .tables import (
    EXECUTORS,
    FAMILIES,
    held_out_windows,
    logits_table,
    perplexity_table,
    random_sequences,
)

SEQUENCES, TOKENS = 4, 300
SMALL_SEQUENCES, SMALL_TOKENS = 1, 100
WINDOWS, WINDOW_TOKENS = 24, 1000
SMALL_WINDOWS, SMALL_WINDOW_TOKENS = 2, 500


def main() -> None:
    """Print both tables; exit 1 when a line is out of bounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few sequences: some seconds")
    small: bool = parser.parse_args().small
    sequences = random_sequences(*(SMALL_SEQUENCES, SMALL_TOKENS) if small else (SEQUENCES, TOKENS))
    good = True
    with tempfile.TemporaryDirectory(prefix="triolet-accuracy-") as base:
        print(f"{'family':12}{'computed by':22}{'error':>10}{'largest':>10}{'of bf16':>10}")
        for family in FAMILIES:
            for line in logits_table(family, pathlib.Path(base), sequences, EXECUTORS):
                print(line, flush=True)
                good &= line.good
    folder = bundled_model_folder()
    size = (SMALL_WINDOWS, SMALL_WINDOW_TOKENS) if small else (WINDOWS, WINDOW_TOKENS)
    windows = held_out_windows(folder, *size)
    print(f"\nperplexity of the bundled model, {size[0]} windows of {size[1]} tokens")
    for score in perplexity_table(folder, windows, EXECUTORS):
        print(score, flush=True)
        good &= score.good
    sys.exit(not good)


if __name__ == "__main__":
    main()
