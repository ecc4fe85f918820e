"""What of a tree is enough to call it whole, and how a run that does not come up is told."""

import pathlib

import pytest
import trio

from triolet.fuzz.chaos.clients import Lost
from triolet.fuzz.chaos.served_run import epochs_of, is_serving, open_served_run
from triolet.nurseries.tasks.task_tree import ProcessTree

from .small_server import DEADLINE_S

PLACES = ["root", "frontend 0", "engine 0", "engine 1", "engine 0/worker 0"]


@pytest.mark.parametrize(
    ("place", "facts", "whole"),
    [
        ("root", {}, True),
        ("frontend 0", {"epoch": 3, "engines": 2}, True),
        ("frontend 0", {"epoch": 3, "engines": 1}, False),
        ("engine 0", {"epoch": 3, "frontends": 1}, True),
        ("engine 0", {"epoch": 3, "frontends": 0}, False),
        ("engine 0", {"epoch": 3, "phase": "start", "done": "10%"}, False),
        ("engine 0", {"state": "does not answer"}, False),
        ("engine 0/worker 0", {"phase": "serve"}, True),
    ],
)
def test_a_process_that_serves(
    place: str, facts: dict[str, str | int | float], whole: bool
) -> None:
    assert is_serving(place, ProcessTree(place, 1, facts), PLACES) is whole


def test_epochs_are_those_of_supervised_children() -> None:
    found = {
        "root": ProcessTree("root", 1),
        "engine 0": ProcessTree("engine 0", 2, {"epoch": 4}),
        "engine 0/worker 0": ProcessTree("worker 0", 3, {"epoch": 4}),
    }
    assert epochs_of(found) == {"engine 0": 4}


@pytest.mark.slow
async def test_a_server_that_cannot_start_is_told_with_its_log(tmp_path: pathlib.Path) -> None:
    with trio.fail_after(3 * DEADLINE_S), pytest.raises(Lost, match="--executor must be one of"):
        async with open_served_run(tmp_path, ["--executor", "magic"]):
            pass
