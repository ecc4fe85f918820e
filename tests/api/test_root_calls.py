"""Calls to the root: each answer finds its question, and a silent root is not waited for long."""

import pytest
import trio
import trio.testing

from triolet.api.errors import ApiError
from triolet.api.root_calls import RootCalls
from triolet.runtime.control.calls import ControlCall, ControlQuestion
from triolet.runtime.messages import RootCall, RootReply


async def test_an_answer_finds_its_question() -> None:
    calls = RootCalls()

    async def send(call: RootCall) -> None:
        await trio.lowlevel.checkpoint()
        calls.handle_reply(RootReply(call.call_id - 1, "of another"))
        calls.handle_reply(RootReply(call.call_id, f"{call.question.call} {call.call_id}"))

    calls.send = send
    assert await calls.ask(ControlQuestion(ControlCall.TREE)) == "tree 1"
    assert await calls.ask(ControlQuestion(ControlCall.TREE)) == "tree 2"


async def test_a_silent_root_is_503(autojump_clock: trio.testing.MockClock) -> None:
    asked: list[RootCall] = []

    async def send(call: RootCall) -> None:
        await trio.lowlevel.checkpoint()
        asked.append(call)

    calls = RootCalls(send)
    with pytest.raises(ApiError) as caught:
        await calls.ask(ControlQuestion(ControlCall.TREE))
    assert (caught.value.status, caught.value.code) == (503, "root_unreachable")
    calls.handle_reply(RootReply(asked[0].call_id, "late"))
    assert trio.current_time() < 4


async def test_without_a_root_it_is_503_at_once() -> None:
    with pytest.raises(ApiError):
        await RootCalls().ask(ControlQuestion(ControlCall.TREE))
