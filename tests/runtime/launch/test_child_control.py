"""Control channel of a child: late orders, and questions that get no answer."""

import socket
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from triolet.engine.control_messages import TreeReply, TreeRequest
from triolet.runtime.launch.child_control import ChildControl
from triolet.runtime.messages import ServerNews
from triolet.transports.control.channel import ControlChannel

from ...leaks import no_room_for_descriptors


async def test_want_of_descriptors_makes_orders_late_and_news_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    news = ServerNews(["x" * 100_000], is_whole=True)
    with (
        ControlChannel(left, sends=[ServerNews]) as channel,
        ControlChannel(right, receives=[ServerNews]) as far_end,
    ):
        control = ChildControl("engine 0", channel)
        async with trio.open_nursery() as nursery:
            with no_room_for_descriptors():
                nursery.start_soon(control.send_snapshots)
                control.publish(news)
                with pytest.raises(trio.TooSlowError):
                    await control.send(news, 1.0)
            assert await far_end.receive() == (news, [])
            nursery.cancel_scope.cancel("it was sent")


async def test_a_tree_that_does_not_come_is_told(autojump_clock: trio.testing.MockClock) -> None:
    """A late answer to a question that nobody waits for any more is dropped."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ControlChannel(left, sends=[TreeRequest], receives=[TreeReply]) as channel,
        ControlChannel(right, sends=[TreeReply], receives=[TreeRequest]) as far_end,
    ):
        control = ChildControl("engine 0", channel)
        with pytest.raises(trio.TooSlowError):
            await control.trees.ask()
        request, _ = await far_end.receive()
        assert request == TreeRequest(1)
        control.trees.handle_reply(TreeReply(1, "late"))

        def handle(message: object, fds: Sequence[int]) -> None:
            assert isinstance(message, TreeReply)
            control.trees.handle_reply(message)

        async def answer() -> None:
            question, _ = await far_end.receive()
            assert isinstance(question, TreeRequest)
            await far_end.send(TreeReply(question.call_id, "in time"))
            far_end.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(control.read, handle)
            nursery.start_soon(answer)
            assert await control.trees.ask() == "in time"


async def test_a_child_that_ends_instead_of_an_answer_is_not_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ControlChannel(left, sends=[TreeRequest], receives=[TreeReply]) as channel,
        ControlChannel(right, sends=[TreeReply], receives=[TreeRequest]) as far_end,
    ):
        control = ChildControl("engine 0", channel)

        def handle(message: object, fds: Sequence[int]) -> None:
            raise AssertionError("the child says nothing")

        async def end() -> None:
            await far_end.receive()
            far_end.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(control.read, handle)
            nursery.start_soon(end)
            with pytest.raises(trio.BrokenResourceError):
                await control.trees.ask()
        assert trio.current_time() == 0.0
