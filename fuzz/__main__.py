"""The command line: `python -m triolet.fuzz NAME --seed N`, `smoke`, `canary` and larger programs.

Words to calls, findings to sentences, and nothing else. A program that presses the runtime hooks in
as a command of its own. Must not know how anything is pressed.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

from cyclopts import App, Parameter

from .chaos.options import ChaosOptions
from .fuzzer import AnyFuzzer, Finding, NotNoticed, NotReached, run_canary, run_fuzzer, run_round
from .registry import FUZZERS

app = App(name="python -m triolet.fuzz", help="Programs that press the runtime.")
# As one: a fixed seed makes `make test` the same for everybody.
SMOKE_SEED = 1
EXIT_FOUND = 1
CHAOS = ChaosOptions()

Seed = Annotated[int, Parameter(help="What decides everything that is drawn.")]
Events = Annotated[int | None, Parameter(help="How many events; without it a smoke run.")]
Round = Annotated[int | None, Parameter(help="Only this round, as a finding names it.")]


@contextmanager
def findings_as_sentences() -> Iterator[None]:
    """Print a finding and exit with 1."""
    try:
        yield
    except (Finding, NotReached, NotNoticed) as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_FOUND)


def _command(fuzzer: AnyFuzzer) -> Callable[..., None]:
    def run(*, seed: Seed = SMOKE_SEED, events: Events = None, round: Round = None) -> None:
        with findings_as_sentences():
            if round is not None:
                _report(fuzzer, partial(run_round, fuzzer, seed, round, fuzzer.target))
            else:
                _report(fuzzer, partial(run_fuzzer, fuzzer, seed=seed, events=events))

    run.__doc__ = fuzzer.invariant
    return run


def _report(fuzzer: AnyFuzzer, run: Callable[[], Counter[str]]) -> None:
    started = time.monotonic()
    reached = run()
    what = ", ".join(f"{count} {name}" for name, count in sorted(reached.items()))
    print(f"{fuzzer.name}: held, {time.monotonic() - started:.1f} s; {what}", flush=True)


for _fuzzer in FUZZERS:
    app.command(_command(_fuzzer), name=_fuzzer.name)


@app.command
def smoke(*, seed: Seed = SMOKE_SEED) -> None:
    """Every fuzzer, briefly; part of the tests."""
    with findings_as_sentences():
        for fuzzer in FUZZERS:
            _report(fuzzer, partial(run_fuzzer, fuzzer, seed=seed))


@app.command
def canary(*, seed: Seed = SMOKE_SEED) -> None:
    """Plant each known fault and demand that its fuzzer notices; part of the tests."""
    with findings_as_sentences():
        for fuzzer in FUZZERS:
            for fault in fuzzer.faults:
                number, error = run_canary(fuzzer, fault, seed=seed)
                how = f"{type(error).__name__} {error}".partition("\n")[0].strip()
                print(f"{fuzzer.name}: {fault}: noticed in round {number}: {how}", flush=True)


@app.command
def chaos(*, options: Annotated[ChaosOptions, Parameter(name="*")] = CHAOS) -> None:
    """Kill, stop, abort and disconnect over a real server; judge all of it from outside."""
    from .chaos.command import chaos as run_chaos

    sys.exit(run_chaos(options))


if __name__ == "__main__":
    app()
