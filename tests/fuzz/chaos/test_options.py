"""What a campaign is made of, and the words that make the same one again."""

import math
from typing import Any

import pytest

from triolet.command_line import app
from triolet.engine.errors import InvalidParameter
from triolet.fuzz.__main__ import app as fuzz_app
from triolet.fuzz.chaos.options import ChaosOptions

OPTIONS = ChaosOptions(seed=7, faults=10, frontends=1, executor="torch")


def test_the_server_is_that_of_a_user_but_for_its_patience() -> None:
    words = OPTIONS.words_of_serve()
    assert words[words.index("--engines") + 1] == "2"
    assert int(words[words.index("--restart-limit") + 1]) > 300
    command, _, _ = app.parse_args(["serve", *words], print_error=False, exit_on_error=False)
    assert command.__name__ == "serve"


def test_the_places_of_a_whole_tree() -> None:
    assert set(OPTIONS.places()) == {
        "root",
        "frontend 0",
        "engine 0",
        "engine 0/worker 0",
        "engine 1",
        "engine 1/worker 0",
    }


def test_how_long_a_step_takes_is_known_of_the_null_executor_alone() -> None:
    assert ChaosOptions(step=0.5).step_s() == 0.5
    assert OPTIONS.step_s() == 0.0


def test_the_replay_is_a_command_that_there_is_in_two_places() -> None:
    words = OPTIONS.words_of_replay()
    assert words[:2] == ["triolet", "chaos"]
    for each in (app, fuzz_app):
        command, bound, _ = each.parse_args(words[1:], print_error=False, exit_on_error=False)
        assert command.__name__ == "chaos"
        assert bound.arguments["options"] == OPTIONS


@pytest.mark.parametrize(
    "wrong",
    [
        {"faults": 0},
        {"engines": 0},
        {"frontends": -1},
        {"step": -1.0},
        {"step": math.inf},
        {"patience": 0.5},
        {"patience": math.nan},
    ],
    ids=str,
)
def test_what_makes_no_campaign_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter) as caught:
        ChaosOptions(**wrong)
    assert caught.value.parameter in wrong
