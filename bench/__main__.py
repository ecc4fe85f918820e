"""Runs the benchmarks: all of them, or those that are named; each in a process of its own.

    make bench
    python -m triolet.bench                      # all
    python -m triolet.bench whole_path step_ring
    python -m triolet.bench shared_cores small --rounds 2
    python -m triolet.bench shared_cores --help

Words that are no benchmark's name belong to the one before them. What a benchmark has found is
printed at once. One that runs longer than its bound is cut off, and the next one begins.
Figures are medians where it matters and never asserted: speed belongs here, not into a timed test.
"""

import ast
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence

from .steps.shapes import SHAPES

# {benchmark: minutes after which it is cut off}: several times what it takes on two slow cores that
# have neighbours.
BENCHMARKS = {
    "whole_path": 5,
    "frontend": 8,
    "sockets": 15,
    "overload": 5,
    "many_streams": 5,
    "rebuilding": 8,
    "viewer": 25,
    "host_loop": 3,
    "bridge": 5,
    "step_ring": 5,
    "journal": 3,
    "journal_price": 8,
    "engine_core": 5,
    "sampling": 3,
    "worker_death": 8,
    "walks": 2,
    "shared_cores": 30,
    "memory": 20,
    "torch_executor": 5,
}
# A benchmark that is told to stop stops its servers within it, or is killed.
STOP_S = 30.0
# The exit code of what SIGTERM ended, as a shell has it.
TERMINATED = 128 + signal.SIGTERM


class UnknownBenchmark(Exception):
    """A word that is neither a benchmark's name nor anything that one takes."""

    def __str__(self) -> str:
        return f"no benchmark {self.args[0]!r}; there are: {', '.join(BENCHMARKS)}"


def parse(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each benchmark with the words that belong to it. Raises `UnknownBenchmark`."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word in BENCHMARKS:
            found.append((word, []))
        elif found and _belongs(word, found[-1][1]):
            found[-1][1].append(word)
        else:
            raise UnknownBenchmark(word)
    return found or [(name, []) for name in BENCHMARKS]


def _belongs(word: str, before: Sequence[str]) -> bool:
    """To the benchmark that has the words `before`: an option, what follows one, or a size."""
    follows_option = bool(before) and before[-1].startswith("--")
    return follows_option or word.startswith("-") or word.isdigit() or word in SHAPES


def describe() -> str:
    """Text of `--help`: the docstring, and a line for each benchmark."""
    lines = [__doc__, "", "benchmark, and the minutes after which it is cut off:"]
    for name, minutes in BENCHMARKS.items():
        source = pathlib.Path(__file__).with_name("parts").joinpath(f"{name}.py").read_text()
        first, *_ = (ast.get_docstring(ast.parse(source)) or "").splitlines()
        lines.append(f"  {name:15} {minutes:3}  {first}")
    return "\n".join(lines)


def run(name: str, words: Sequence[str]) -> str:
    """Run it to its end or bound; returns what went wrong, or nothing."""
    minutes = BENCHMARKS[name]
    print(f"\n== {name} (at most {minutes} minutes)", flush=True)
    command = [sys.executable, "-m", f"triolet.bench.parts.{name}", *words]
    # Unbuffered: what was found before it was cut off or killed is not lost.
    with subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as benchmark:
        try:
            code = benchmark.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            stop(benchmark)
            return f"{name} was cut off after {minutes} minutes"
        except SystemExit:
            stop(benchmark)
            raise
    return f"{name} failed ({code})" if code else ""


def stop(benchmark: subprocess.Popen[bytes]) -> None:
    """Stop it as Ctrl-C does, so that it ends its servers; kill it if it does not heed that."""
    benchmark.send_signal(signal.SIGINT)
    try:
        benchmark.wait(STOP_S)
    except subprocess.TimeoutExpired:
        benchmark.kill()


def main() -> None:
    """Run them one after another; two at once would measure each other."""
    words = sys.argv[1:]
    if words[:1] in (["--help"], ["-h"]):
        print(describe())
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    # A program that a shell began in the background ignores it, and so would all below it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        chosen = parse(words)
    except UnknownBenchmark as error:
        sys.exit(str(error))
    faults = [fault for name, rest in chosen if (fault := run(name, rest))]
    if faults:
        sys.exit("; ".join(faults))


if __name__ == "__main__":
    main()
