"""Every fuzzer holds in a smoke run, and notices each fault that can be planted for it."""

import pytest

from triolet.fuzz.fuzzer import AnyFuzzer, run_canary, run_fuzzer
from triolet.fuzz.fuzzers.registry import FUZZERS

from ...house import ROOT

# Fixed, so that a run is the same everywhere; `python -m triolet.fuzz` takes others.
SEED = 1
CANARIES = [(fuzzer, fault) for fuzzer in FUZZERS for fault in fuzzer.faults]


@pytest.mark.slow
@pytest.mark.parametrize("fuzzer", FUZZERS, ids=lambda fuzzer: fuzzer.name)
def test_it_holds(fuzzer: AnyFuzzer) -> None:
    run_fuzzer(fuzzer, seed=SEED)


@pytest.mark.slow
@pytest.mark.parametrize(("fuzzer", "fault"), CANARIES, ids=lambda it: getattr(it, "name", it))
def test_it_notices(fuzzer: AnyFuzzer, fault: str) -> None:
    run_canary(fuzzer, fault, seed=SEED)


def test_every_fuzzer_is_in_the_list() -> None:
    folder = ROOT / "fuzz" / "fuzzers"
    files = {path.stem for path in folder.glob("*.py") if "\nFUZZER = " in path.read_text()}
    names = [fuzzer.name.replace("-", "_") for fuzzer in FUZZERS]
    assert sorted(names) == sorted(files)


def test_every_fuzzer_can_fail_and_says_what_it_reached() -> None:
    for fuzzer in FUZZERS:
        assert fuzzer.faults, fuzzer.name
        assert fuzzer.reaches, fuzzer.name
        assert "\n" not in fuzzer.invariant
