"""Rounds are the same for the same seed, findings are short and replay, canaries can die."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import attrs
import pytest

from triolet.fuzz.__main__ import findings_as_sentences, main
from triolet.fuzz.fuzzer import (
    Finding,
    Fuzzer,
    NotNoticed,
    NotReached,
    run_canary,
    run_fuzzer,
    run_round,
)
from triolet.fuzz.fuzzers.storm import ServerHurt


def draw(chance: Random, count: int) -> list[int]:
    return [chance.randrange(100) for _ in range(count)]


def check(events: Sequence[int], limit: int) -> Counter[str]:
    """Two numbers above the limit are wrong; one is not."""
    above = [event for event in events if event >= limit]
    assert len(above) < 2, f"{len(above)} above {limit}"
    return Counter({"events": len(events), "above": len(above)})


TOY = Fuzzer[int, int](
    name="toy",
    invariant="no two numbers are above the limit",
    draw=draw,
    check=check,
    target=100,
    faults={"the limit is lower": 50},
    round_events=40,
    smoke_rounds=3,
    reaches=frozenset({"events"}),
)


def test_what_is_reached_is_counted_over_all_rounds() -> None:
    assert run_fuzzer(TOY, seed=1) == Counter(events=120)
    assert run_fuzzer(TOY, seed=1, events=41) == Counter(events=80)


def test_a_smoke_run_that_reaches_nothing_is_no_success() -> None:
    dull = attrs.evolve(TOY, reaches=frozenset({"above", "events"}))
    with pytest.raises(NotReached, match="toy never reached: above"):
        run_fuzzer(dull, seed=1)
    run_fuzzer(dull, seed=1, events=40)


def test_a_finding_is_short_and_says_how_to_see_it_again() -> None:
    with pytest.raises(Finding) as caught:
        run_round(TOY, 7, 5, 50)
    finding = caught.value
    assert len(finding.events) == 2
    assert finding.drawn == 40
    assert isinstance(finding.error, AssertionError)
    text = str(finding)
    assert "python -m triolet.fuzz toy --seed 7 --round 5" in text
    assert all(repr(event) in text for event in finding.events)


def test_shrinking_keeps_to_the_error_it_began_with() -> None:
    def check_both(events: Sequence[int], limit: int) -> Counter[str]:
        if not events:
            raise ValueError("another fault, in fewer events")
        return check(events, limit)

    with pytest.raises(Finding) as caught:
        run_round(attrs.evolve(TOY, check=check_both), 1, 1, 50)
    assert len(caught.value.events) == 2


def test_shrinking_keeps_to_the_words_of_the_error_but_not_to_its_numbers() -> None:
    def check_words(events: Sequence[int], limit: int) -> Counter[str]:
        if len(events) < 5:
            raise AssertionError("too few")
        raise AssertionError(f"{len(events)} of {limit} are too many")

    with pytest.raises(Finding) as caught:
        run_round(attrs.evolve(TOY, check=check_words), 1, 1, 50)
    assert len(caught.value.events) == 5


def test_a_canary_that_lives_is_an_error() -> None:
    number, error = run_canary(TOY, "the limit is lower", seed=1)
    assert number == 0
    assert isinstance(error, AssertionError)
    blind = attrs.evolve(TOY, faults={"none at all": 100})
    with pytest.raises(NotNoticed, match="did not notice in 3 rounds: none at all"):
        run_canary(blind, "none at all", seed=1)


def test_a_fuzzer_that_cannot_draw_has_not_noticed_anything() -> None:
    def draw_nothing(chance: Random, count: int) -> list[int]:
        raise ValueError("a mistake of the fuzzer's own")

    with pytest.raises(ValueError, match="own"):
        run_canary(attrs.evolve(TOY, draw=draw_nothing), "the limit is lower", seed=1)


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


def test_a_finding_is_a_sentence_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, findings_as_sentences():
        raise ServerHurt("the frontend is another process")
    assert ended.value.code == 1
    assert "another process" in capsys.readouterr().err
