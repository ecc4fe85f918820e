"""Prints how many streams are bit for bit those of their requests run alone, in every way to run.

    python -m tests.bitwise [--executor NAME] [--model FOLDER | --family NAME] [--ways NAME …] …

A stream is its tokens and the bits of their logprobs. The bundled model serves without a folder; a
family's is the random one of `tests.accuracy`. A way is named by any part of its name in the table.
"""

import argparse
import os
import pathlib
import sys
import tempfile

from triolet.engine.kernels.library import SPIN_COUNT, SPIN_VARIABLE
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.model_config.config import load_model_limits

# As workers have it, and before torch is loaded, which the modules below do: with two threads on a
# busy machine everything takes six times as long otherwise.
os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)

from triolet.tests.accuracy.families import FAMILIES, save_model
from triolet.tests.accuracy.tables import serves

from .engine import draw_requests
from .table import EXECUTORS, HEAD, lines, variations

REQUESTS, TOKENS = 64, 128


def main() -> None:
    """Print the table; exit 1 when a stream differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.bitwise", description=__doc__)
    parser.add_argument("--executor", choices=tuple(EXECUTORS), action="append")
    parser.add_argument("--model", type=pathlib.Path, default=bundled_model_folder())
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", default=[""], metavar="NAME")
    parser.add_argument("--family", choices=[family.name for family in FAMILIES])
    given = parser.parse_args()
    try:
        variations(given.tokens, given.ways)
    except ValueError as exc:
        parser.error(str(exc))
    with tempfile.TemporaryDirectory(prefix="triolet-bitwise-") as base:
        for family in FAMILIES:
            if family.name == given.family:
                given.model = pathlib.Path(base)
                save_model(given.model, family)
        sys.exit(not compare(given))


def compare(given: argparse.Namespace) -> bool:
    """Print the table; whether all streams are identical."""
    vocabulary = load_model_limits(given.model).vocab_size
    requests = draw_requests(
        given.requests, tokens=given.tokens, vocabulary=vocabulary, seed=given.seed
    )
    print(HEAD)
    good = True
    for executor in given.executor or EXECUTORS:
        if not serves(given.model, EXECUTORS[executor]):
            print(f"{executor:8}does not serve this model here")
            continue
        chosen = variations(given.tokens, given.ways)
        for line in lines(given.model, executor, requests, chosen, seed=given.seed):
            print(line, flush=True)
            good &= line.good
    return good


if __name__ == "__main__":
    main()
