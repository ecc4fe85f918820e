"""Readers of one response: who is woken, who is waited for, and what their leaving does."""

import math
from contextlib import ExitStack
from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.errors import ApiError
from triolet.api.openai.response_events import Status
from triolet.api.responses.response import READERS_MAX, AttachedReader, LiveResponse
from triolet.runtime.frontend.generation import Usage

from ..records import COMPLETED, make_live, say, taken

KEEP = {"runtime": {"keep_s": 30}}


def text_of(reader: AttachedReader) -> str:
    return "".join([str(event.get("delta", "")) for event in taken(reader)])


async def test_readers_wait_by_themselves_or_are_woken() -> None:
    response = make_live()
    woken: list[AttachedReader] = []
    with response.reading(3) as one, response.reading(3, wake=woken.append) as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.wait_ready)
            await trio.testing.wait_all_tasks_blocked()
            say(response.record, "a")
            response.wake_readers()
        assert woken == [other]
        assert (text_of(one), text_of(other)) == ("a", "a")
        response.end(COMPLETED)
        assert woken == [other] * 2
        taken(one)
        assert (one.done.is_set(), other.done.is_set()) == (True, False)
        await one.wait_ready()


async def test_the_last_reader_that_leaves_ends_it() -> None:
    response = make_live()
    with response.held():
        with response.reading(), response.reading():
            pass
        assert not response.scope.cancel_called
    assert response.scope.cancel_called


@pytest.mark.parametrize("values", [{"background": True}, KEEP])
async def test_some_outlive_their_readers(
    values: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    response = make_live(**values)
    with response.reading():
        pass
    assert not response.scope.cancel_called
    assert response.scope.deadline == (math.inf if "background" in values else 30)
    await trio.sleep(20)
    with response.reading():
        assert response.scope.deadline == math.inf
    assert response.scope.deadline == (math.inf if "background" in values else 50)


async def test_a_deadline_comes_before_the_end_of_keeping(
    autojump_clock: trio.testing.MockClock,
) -> None:
    response = make_live(runtime={"keep_s": 30, "deadline_ms": 10_000})
    with response.reading():
        assert response.scope.deadline == 10
    assert response.scope.deadline == 10
    await trio.sleep(10)
    assert response.ending_when_cut(Usage(1, 0)).reason == "deadline"
    response.cancel("by the client")
    assert response.ending_when_cut(Usage(1, 0)).status is Status.CANCELLED


def count_pulls(response: LiveResponse) -> list[str]:
    """Each pull brings an x."""
    pulls: list[str] = []

    def pull() -> None:
        pulls.append("x")
        say(response.record, "x")

    response.pull_from = pull
    return pulls


async def test_whoever_takes_first_pulls_and_is_told_once() -> None:
    response = make_live()
    pulls = count_pulls(response)
    woken: list[AttachedReader] = []
    with response.reading(3, woken.append) as one, response.reading(3, woken.append) as other:
        for _ in range(5):
            response.on_output()
        assert (woken, pulls) == ([one, other], [])
        assert (one.is_ready, other.is_ready) == (True, True)
        assert (text_of(one), pulls) == ("x", ["x"])
        assert (one.is_ready, other.is_ready) == (False, True)
        assert (text_of(other), pulls) == ("x", ["x"])
        response.on_output()
        assert woken == [one, other] * 2
        response.on_output(is_end=True)
        assert pulls == ["x"] * 2


async def test_without_readers_it_is_pulled_when_it_comes() -> None:
    response = make_live(background=True)
    pulls = count_pulls(response)
    response.on_output()
    assert len(pulls) == 1
    with response.reading(3):
        response.on_output()
        assert len(pulls) == 1
    assert len(pulls) == 2  # else it would stop at its credit for good


async def test_it_is_pulled_for_those_who_wait_for_the_end() -> None:
    response = make_live()
    pulls = count_pulls(response)
    with response.reading(3) as reader:
        response.on_output()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(response.wait_ended)
            await trio.testing.wait_all_tasks_blocked()
            assert len(pulls) == 1
            response.on_output()
            assert len(pulls) == 2
            response.end(COMPLETED)
        assert text_of(reader) == "xx"


async def test_readers_are_bounded() -> None:
    response = make_live()
    with ExitStack() as stack:
        for _ in range(READERS_MAX):
            stack.enter_context(response.reading())
        with pytest.raises(ApiError) as caught, response.reading():
            pass
        assert (caught.value.status, caught.value.code) == (429, "too_many_readers")


async def test_credit_granted_before_the_request_is_not_lost() -> None:
    response = make_live()
    granted: list[int] = []
    response.grant(3)
    response.grant(4)
    response.open_credit(granted.append)
    response.grant(5)
    assert granted == [7, 5]
