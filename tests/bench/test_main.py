"""What the words after `python -m triolet.bench` mean."""

import importlib.util

import pytest

from triolet.bench.__main__ import BENCHMARKS, UnknownBenchmark, describe, parse


def test_no_words_are_all_benchmarks() -> None:
    assert parse([]) == [(name, []) for name in BENCHMARKS]


def test_words_belong_to_the_benchmark_before_them() -> None:
    words = ["offline", "small", "--rounds", "2", "bridge", "frontend", "--help"]
    assert parse(words) == [
        ("offline", ["small", "--rounds", "2"]),
        ("bridge", []),
        ("frontend", ["--help"]),
    ]


@pytest.mark.parametrize("words", [["whole_pat"], ["bridge", "frontent"], ["--rounds", "2"]])
def test_an_unknown_word_is_refused_with_what_there_is(words: list[str]) -> None:
    with pytest.raises(UnknownBenchmark, match="there are: whole_path, frontend"):
        parse(words)


def test_help_has_a_line_for_each_benchmark_with_its_bound() -> None:
    lines = [line.split() for line in describe().splitlines()]
    said = {line[0]: int(line[1]) for line in lines if line and line[0] in BENCHMARKS}
    assert said == BENCHMARKS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_a_module(name: str) -> None:
    assert importlib.util.find_spec(f"triolet.bench.{name}") is not None
