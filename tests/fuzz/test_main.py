"""The command line of the fuzzers: wrong words are one sentence and code 2, findings code 1."""

import pytest

from triolet.fuzz.__main__ import app, findings_as_sentences, main
from triolet.fuzz.fuzzers.registry import FUZZERS
from triolet.fuzz.fuzzers.storm import ServerHurt


def run(words: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["codec", "--events", "-5"], "--events"),
        (["codec", "--events", "0"], "--events"),
        (["frames", "--count", "0"], "--count"),
        (["frames", "--in-flight", "0"], "--in-flight"),
        (["chaos", "--engines", "0"], "--engines must be at least 1"),
        (["chaos", "--step", "nan"], "--step must be finite"),
        (["nothing"], "nothing"),
    ],
    ids=str,
)
def test_wrong_words(
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(words) not in (0, None)
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_run_says_what_it_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["codec", "--events", "50", "--seed", "3"]) in (0, None)
    assert capsys.readouterr().out.startswith("codec: held, ")


def test_every_fuzzer_is_a_command() -> None:
    for fuzzer in FUZZERS:
        assert fuzzer.name in app


def test_a_finding_is_a_sentence_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, findings_as_sentences():
        raise ServerHurt("the frontend is another process")
    assert ended.value.code == 1
    assert "another process" in capsys.readouterr().err
