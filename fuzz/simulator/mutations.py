"""Mutations of the control plane: each comparison of epochs, attempts, generations or indices is
inverted, one at a time, and something must notice: the simulator, or the unit tests.

The changed package is a temporary copy; this one is never touched.
"""

import ast
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

# Modules that decide by these numbers, and the tests of each.
MODULES = {
    "transports/links/link.py": "tests/transports/links",
    "transports/links/linked_channel.py": "tests/transports/links",
    "transports/links/memory_channel.py": "tests/transports/links",
    "transports/links/zmq_channel.py": "tests/transports/links",
    "runtime/frontend/ledger.py": "tests/runtime/frontend tests/scenarios",
    "runtime/frontend/ledger_entry.py": "tests/runtime/frontend tests/scenarios",
    "runtime/frontend/adoption.py": "tests/runtime/frontend",
    "runtime/frontend/engine_view.py": "tests/runtime/frontend",
    "runtime/frontend/replay_policy.py": "tests/runtime/frontend tests/scenarios",
    "runtime/frontend/request_flow.py": "tests/runtime/frontend",
    "runtime/fleet/membership.py": "tests/runtime/fleet",
    "runtime/fleet/place.py": "tests/runtime/fleet tests/scenarios",
    "runtime/hosts/host_directory.py": "tests/runtime/hosts",
    "runtime/hosts/host_fleet.py": "tests/runtime/hosts",
    "runtime/hosts/lease.py": "tests/runtime/hosts",
    "runtime/continuity/journal_folder.py": "tests/runtime/continuity",
    "runtime/continuity/connection_slots.py": "tests/runtime/continuity tests/scenarios",
    "runtime/journal/judgement.py": "tests/scenarios",  # `ledger/exactly_once.txt`
    "runtime/journal/reader.py": "tests/runtime/journal",
    "runtime/journal/stream.py": "tests/runtime/journal",
    "runtime/journal/streams.py": "tests/runtime/journal",
    "runtime/journal/writer.py": "tests/runtime/journal",
    "engine/process/main.py": "tests/engine/process",
    "engine/process/step_loop.py": "tests/engine/process",
    "engine/process/step_rings.py": "tests/engine/process",
    "engine/core/engine_core.py": "tests/engine/core",
    "engine/core/homes.py": "tests/engine/core",
    "engine/core/request_store.py": "tests/engine/core",
    "engine/core/request.py": "tests/engine/core",
    "engine/core/outputs.py": "tests/engine/core",
    "engine/core/checks.py": "tests/engine/core",
    "api/streams/adoption.py": "tests/api/streams",
    "api/streams/executions.py": "tests/api/streams",
    "api/streams/foreign.py": "tests/api/streams",
}
# Modules of several machines, which a simulation of one does not run.
HOSTS = "runtime/hosts/"
NUMBERS = re.compile(
    r"epoch|incarnation|term|attempt|generation|index|sequence|number|acknowledged|_received|_sent|"
    r"fence|len\(.*token_ids\)|output_count"
)
INVERSE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
}
INVERSE |= {after: before for before, after in INVERSE.items()}
PACKAGE = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist")
# An inverted comparison may make a loop endless; a healthy run takes some seconds of a processor,
# and as many more as others leave it waiting.
CPU_MAX_S = 180
TIMEOUT_S = 10 * CPU_MAX_S


@attrs.frozen
class Mutation:
    """One comparison, by its place among those of its module."""

    module: str
    place: int
    line: int
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.source}"


def mutations_of(module: str, source: str) -> list[Mutation]:
    """Every comparison of such numbers, but those in assertions: they are checks themselves."""
    return [
        Mutation(module, place, node.lineno, ast.unparse(node))
        for place, node in enumerate(_comparisons(ast.parse(source)))
    ]


def mutate(source: str, place: int) -> str:
    """The module's text with this comparison inverted."""
    tree = ast.parse(source)
    for number, node in enumerate(_comparisons(tree)):
        if number == place:
            node.ops[0] = INVERSE[type(node.ops[0])]()
    return ast.unparse(tree)


def _comparisons(tree: ast.AST) -> Iterator[ast.Compare]:
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.FunctionDef) and node.name == "check_invariants")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or id(node) in skipped or len(node.ops) > 1:
            continue
        if NUMBERS.search(ast.unparse(node)):
            yield node


@contextmanager
def _copied_package() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="triolet-mutations-") as folder:
        shutil.copytree(PACKAGE, Path(folder, "triolet"), ignore=LEFT_OUT)
        yield Path(folder)


def find_survivors(seeds: int, only: str = "") -> Iterator[str]:
    """Try each mutation whose module's path has `only` in it; a line for each, then the share."""
    caught = total = 0
    with _copied_package() as folder:
        for module in MODULES:
            if only not in module:
                continue
            path = folder / "triolet" / module
            source = path.read_text()
            for mutation in mutations_of(module, source):
                path.write_text(mutate(source, mutation.place))
                by = _caught_by(folder, module, seeds)
                total += 1
                caught += bool(by)
                yield f"{by or 'SURVIVED':10} {mutation}"
            path.write_text(source)
    yield f"{caught} of {total} mutations were caught: {100 * caught / max(1, total):.0f} %"


def _caught_by(folder: Path, module: str, seeds: int) -> str:
    # A finding is shrunk by hundreds of simulations, and here it is enough that there is one.
    words = ["-m", "triolet.fuzz", "simulate", "--no-shrink", "--seeds", str(seeds)]
    words += ["--hosts"] if module.startswith(HOSTS) else []
    if not _passes(folder, words):
        return "simulator"
    words = ["-m", "pytest", *MODULES[module].split(), "-x", "-q", "-p", "no:cacheprovider"]
    return "" if _passes(folder, words) else "tests"


def _passes(folder: Path, words: Sequence[str]) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder / "triolet",
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        resource.prlimit(running.pid, resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S))
        try:
            return running.wait(TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            running.kill()
            return False
