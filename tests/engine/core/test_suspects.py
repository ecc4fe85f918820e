"""Suspects run alone, and when one has passed, others of its content need not."""

from collections import deque

import pytest

from triolet.engine.batch_table import content_hash
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.messages import AddRequest, RequestKey
from triolet.engine.step_messages import Step
from triolet.fuzz.doubles.checking_worker import CheckingWorker

from .driver import add_request, make_core, make_worker

PROMPT = [7] * 8


def suspect(request_id: str, *, prompt: list[int] | None = None, solo: int = 8) -> AddRequest:
    return add_request(request_id, prompt=prompt or PROMPT, max_tokens=4, solo_tokens=solo)


def run(
    core: EngineCore, worker: CheckingWorker | None = None
) -> list[tuple[list[str], dict[bytes, int]]]:
    """Of each step until the end: the requests in it, and who has passed with it."""
    worker = worker or make_worker(core)
    steps, told = deque[tuple[Step, list[str]]](), []
    while core.has_work():
        while (step := core.schedule(0.0)) is not None:
            steps.append((step, [one.request_id for one in core.newest_step.requests]))
            core.check_invariants()
        step, names = steps.popleft()
        core.finish_step(worker.execute(step), 0.0)
        core.check_invariants()
        told.append((names, core.suspects.take_passed()))
    return told


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_one_that_has_passed_clears_those_of_its_content(steps_in_flight: int) -> None:
    core = make_core(kv_blocks=16, steps_in_flight=steps_in_flight)
    same, other = content_hash(suspect("a")), content_hash(suspect("x", prompt=[9] * 8))
    for request in (suspect("a"), suspect("b"), suspect("c", solo=10)):
        core.add("f0", request)
    core.add("f0", suspect("x", prompt=[9] * 8))
    told = run(core)
    assert told == [
        (["a"], {same: 8}),
        (["a", "b"], {}),
        (["c"], {}),  # suspected at a later position: its prompt, and two tokens by themselves
        (["c"], {}),
        (["c"], {same: 10}),
        (["x"], {other: 8}),
        (["a", "b", "c", "x"], {}),
        (["a", "b", "x"], {}),
        (["b", "x"], {}),
    ]
    assert not core.suspects


def test_nobody_has_passed_before_the_step_is_complete_or_when_it_is_lost() -> None:
    core = make_core(kv_blocks=16, steps_in_flight=2)
    core.add("f0", suspect("a"))
    step = core.schedule(0.0)
    assert step is not None
    assert core.suspects.take_passed() == {}
    core.undo_steps()
    core.check_invariants()
    assert core.suspects
    assert core.suspects.take_passed() == {}
    core.add("f0", add_request("b"))
    worker = make_worker(core)
    worker.number = 1  # the lost step's
    assert run(core, worker)[0][0] == ["a"], "it is alone again"


def test_one_that_ends_with_the_step_that_passes_is_reported() -> None:
    core = make_core()
    core.add("f0", add_request("a", prompt=PROMPT, max_tokens=1, solo_tokens=8))
    assert run(core) == [(["a"], {content_hash(suspect("a")): 8})]
    assert not core.suspects


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_one_that_is_aborted_in_its_step_is_still_alone_in_it(steps_in_flight: int) -> None:
    core = make_core(kv_blocks=16, steps_in_flight=steps_in_flight)
    core.add("f0", suspect("a"))
    step = core.schedule(0.0)
    assert step is not None
    core.add("f0", add_request("b"))
    core.abort("f0", [RequestKey("a", 1)])
    assert core.schedule(0.0) is None
    core.check_invariants()
    core.finish_step(make_worker(core).execute(step), 0.0)
    assert core.suspects.take_passed() == {content_hash(suspect("a")): 8}
    assert core.schedule(0.0) is not None


def test_what_is_cached_does_not_make_one_pass_without_a_step_of_its_own() -> None:
    core = make_core(kv_blocks=16)
    worker = make_worker(core)
    core.add("f0", add_request("first", prompt=PROMPT))
    run(core, worker)
    core.add("f0", suspect("a", solo=3))
    core.add("f0", add_request("b"))
    told = run(core, worker)
    assert told[0] == (["a"], {content_hash(suspect("a")): 8})
    assert told[1][0] != ["a"]


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_one_that_needs_the_blocks_of_those_that_run_lets_them_go_on(steps_in_flight: int) -> None:
    core = make_core(kv_blocks=6, steps_in_flight=steps_in_flight)
    worker = make_worker(core)
    core.add("f0", add_request("older", prompt=[9] * 8, max_tokens=8))
    step = core.schedule(0.0)
    assert step is not None
    core.add("f0", add_request("a", prompt=PROMPT, max_tokens=12, solo_tokens=100))
    core.finish_step(worker.execute(step), 0.0)
    told = run(core, worker)
    names = [names for names, _ in told]
    assert names[0] == ["a"]
    assert ["older"] in names
    assert names[-1] == ["a"]
    assert core.statistics().requests_finished == 2
