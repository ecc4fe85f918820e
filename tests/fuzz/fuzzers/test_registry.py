"""The list is whole, and every fuzzer in it can be told apart and can fail."""

import pathlib

from triolet.fuzz.fuzzers.registry import FUZZERS

from ...house import ROOT


def test_every_fuzzer_is_in_the_list() -> None:
    files = {path.stem.removeprefix("fuzz_") for path in pathlib.Path(ROOT, "fuzz").glob("fuzz_*")}
    names = [fuzzer.name.replace("-", "_") for fuzzer in FUZZERS]
    assert set(names) == files
    assert len(set(names)) == len(names)


def test_every_fuzzer_can_fail_and_says_what_it_reached() -> None:
    for fuzzer in FUZZERS:
        assert fuzzer.faults, fuzzer.name
        assert fuzzer.reaches, fuzzer.name
        assert "\n" not in fuzzer.invariant
