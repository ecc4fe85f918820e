"""Asking a worker, played by the test, for its task tree: turns, late answers, silence, death."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import trio
import trio.testing

from triolet.engine.messages import TreeReply, TreeRequest
from triolet.engine.process.tree_asker import TREE_TIMEOUT_S, TreeAsker
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.transports.control.channel import ControlChannel

DEADLINE_S = 60.0


@contextmanager
def open_ends() -> Iterator[tuple[TreeAsker, ControlChannel]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ControlChannel(left, sends=[TreeRequest], receives=[TreeReply]) as ours,
        ControlChannel(right, sends=[TreeReply], receives=[TreeRequest]) as workers,
    ):
        yield TreeAsker("worker-1", ours), workers


async def next_question(worker: ControlChannel) -> int:
    request, _ = await worker.receive()
    assert isinstance(request, TreeRequest)
    return request.call_id


async def answer(worker: ControlChannel, call_id: int) -> None:
    """With a tree that tells its question's number in place of a pid."""
    tree = msgspec.json.encode(ProcessTree("worker 1", call_id)).decode()
    await worker.send(TreeReply(call_id, tree))


async def test_several_ask_and_each_gets_its_own() -> None:
    pids: list[int] = []

    async def ask() -> None:
        tree = await asker.ask()
        assert tree is not None
        pids.append(tree.pid)

    with open_ends() as (asker, worker), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            for _ in range(3):
                await answer(worker, await next_question(worker))
    assert pids == [1, 2, 3]


async def test_a_late_answer_is_not_the_next_ones() -> None:
    with open_ends() as (asker, worker), trio.fail_after(DEADLINE_S):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(asker.ask)
                await next_question(worker)
                scope.cancel("whoever asked does not wait")
        await answer(worker, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_next, worker)
            tree = await asker.ask()
        assert tree is not None
        assert tree.pid == 2


async def _answer_next(worker: ControlChannel) -> None:
    await answer(worker, await next_question(worker))


async def test_silence_is_no_answer(autojump_clock: trio.testing.MockClock) -> None:
    with open_ends() as (asker, _):
        began = trio.current_time()
        assert await asker.ask() is None
        assert trio.current_time() - began == TREE_TIMEOUT_S  # the mock clock's


async def test_a_worker_that_dies_gives_none() -> None:
    with open_ends() as (asker, worker), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_close_at_question, worker)
            assert await asker.ask() is None
        assert await asker.ask() is None  # and again, now that it cannot be asked


async def _close_at_question(worker: ControlChannel) -> None:
    await next_question(worker)
    worker.close()


async def test_a_channel_that_was_closed_gives_none() -> None:
    with open_ends() as (asker, _), trio.fail_after(DEADLINE_S):
        asker.control.close()
        assert await asker.ask() is None
