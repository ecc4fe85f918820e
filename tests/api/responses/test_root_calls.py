"""Questions to the root: the answer, silence, an answer too late."""

import pytest
import trio
import trio.testing

from triolet.api.errors import ApiError
from triolet.api.responses.foreign import RootCalls
from triolet.runtime.messages import ControlCall, RootCall, RootReply


async def test_an_answer_finds_its_question() -> None:
    calls = RootCalls()

    async def send(call: RootCall) -> None:
        await trio.lowlevel.checkpoint()
        calls.handle_reply(RootReply(call.call_id - 1, "of another"))
        calls.handle_reply(RootReply(call.call_id, f"{call.call} {call.call_id}"))

    calls.send = send
    assert await calls.ask(ControlCall.TREE) == "tree 1"
    assert await calls.ask(ControlCall.TREE) == "tree 2"


async def test_a_silent_root_is_503(autojump_clock: trio.testing.MockClock) -> None:
    asked: list[RootCall] = []

    async def send(call: RootCall) -> None:
        await trio.lowlevel.checkpoint()
        asked.append(call)

    calls = RootCalls(send)
    with pytest.raises(ApiError) as caught:
        await calls.ask(ControlCall.TREE)
    assert (caught.value.status, caught.value.code) == (503, "root_unreachable")
    calls.handle_reply(RootReply(asked[0].call_id, "late"))
    assert trio.current_time() < 4


async def test_without_a_root_nobody_is_asked() -> None:
    with pytest.raises(ApiError):
        await RootCalls().ask(ControlCall.TREE)
