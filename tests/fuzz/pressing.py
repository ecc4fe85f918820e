"""What every fuzzer's own tests do: a smoke run, and a canary for each fault that it notices."""

from triolet.fuzz.fuzzer import AnyFuzzer, run_canary, run_fuzzer

# Fixed, so that a run is the same everywhere; `python -m triolet.fuzz` takes others.
SEED = 1


def check_holds(fuzzer: AnyFuzzer) -> None:
    """The invariant holds, and the run reached what makes it mean something."""
    run_fuzzer(fuzzer, seed=SEED)


def check_notices(fuzzer: AnyFuzzer, fault: str) -> None:
    """A target with one rule broken is found out."""
    run_canary(fuzzer, fault, seed=SEED)
