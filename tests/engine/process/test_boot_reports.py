"""Boot reports: the latest progress of the last rank, in order, and the workers at once."""

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from triolet.engine.control_messages import ENGINE_TO_ROOT, ROOT_TO_ENGINE, WorkersChanged
from triolet.engine.process.boot_reports import BootReports
from triolet.nurseries.processes.process import open_process
from triolet.nurseries.tasks.background import start_background_task
from triolet.tests.leaks import check_no_leaks
from triolet.tests.nurseries.child_programs import PATIENT, receive_ready, spec_of
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import (
    ChildHandshake,
    Hello,
    Init,
    Progress,
    Ready,
    perform_child_handshake,
)
from triolet.transports.control.passed_fds import close_fds

DEADLINE_S = 60.0
LOAD, HASH = "load weights", "hash files"


@attrs.define(eq=False)
class Ends:
    root: ControlChannel
    reports: BootReports
    handshake: ChildHandshake


@asynccontextmanager
async def open_ends(ranks: int = 1) -> AsyncIterator[Ends]:
    """A child that has its INIT, and the root's end."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ControlChannel(left, sends=ROOT_TO_ENGINE, receives=ENGINE_TO_ROOT) as root,
        ControlChannel(right, sends=ENGINE_TO_ROOT, receives=ROOT_TO_ENGINE) as child,
        trio.fail_after(DEADLINE_S),
    ):
        await root.send(Init(b""))
        handshake = await perform_child_handshake(child, "engine")
        hello, _ = await root.receive_any()
        assert isinstance(hello, Hello)
        yield Ends(root, BootReports(child, handshake, ranks), handshake)


async def receive_progress(root: ControlChannel) -> tuple[str, float]:
    message, _ = await root.receive_any()
    assert isinstance(message, Progress)
    return message.phase, message.fraction


async def test_each_report_is_told_when_there_is_time() -> None:
    async with open_ends() as ends, trio.open_nursery() as nursery:
        await start_background_task(nursery, ends.reports.run_progress, name="progress")
        for number in range(1, 6):
            ends.reports.progress(0, LOAD, number / 10)
            assert await receive_progress(ends.root) == (LOAD, number / 10)
        nursery.cancel_scope.cancel("the test is over")


async def test_of_many_reports_the_latest_is_told() -> None:
    async with open_ends() as ends, trio.open_nursery() as nursery:
        await start_background_task(nursery, ends.reports.run_progress, name="progress")
        for number in range(10_000):
            ends.reports.progress(0, LOAD, number / 10_000)
        assert await receive_progress(ends.root) == (LOAD, 0.9999)
        ends.reports.progress(0, HASH, 1.0)
        assert await receive_progress(ends.root) == (HASH, 1.0)
        nursery.cancel_scope.cancel("the test is over")


async def test_a_later_phase_does_not_hide_how_an_earlier_one_ended() -> None:
    async with open_ends() as ends, trio.open_nursery() as nursery:
        for report in [(LOAD, 0.5), (LOAD, 1.0), (HASH, 0.0), (HASH, 0.9)]:
            ends.reports.progress(0, *report)
        await start_background_task(nursery, ends.reports.run_progress, name="progress")
        assert await receive_progress(ends.root) == (LOAD, 1.0)
        assert await receive_progress(ends.root) == (HASH, 0.9)
        nursery.cancel_scope.cancel("the test is over")


async def test_what_is_reported_at_the_very_end_is_told_before_ready() -> None:
    async with open_ends() as ends, trio.open_nursery() as nursery:
        task = await start_background_task(nursery, ends.reports.run_progress, name="progress")
        await trio.testing.wait_all_tasks_blocked()
        ends.reports.progress(0, LOAD, 1.0)
        ends.reports.progress(0, HASH, 1.0)
        await ends.reports.end_progress(task)  # the task had no turn to send them
        assert task.ended
        await ends.handshake.ready(b"ready")
        assert await receive_progress(ends.root) == (LOAD, 1.0)
        assert await receive_progress(ends.root) == (HASH, 1.0)
        message, _ = await ends.root.receive_any()
        assert isinstance(message, Ready)


async def test_after_the_task_has_ended_nothing_is_told_any_more() -> None:
    async with open_ends() as ends, trio.open_nursery() as nursery:
        task = await start_background_task(nursery, ends.reports.run_progress, name="progress")
        ends.reports.progress(0, LOAD, 0.5)
        task.cancel("booting is over")
        await task.wait_ended()
        ends.reports.progress(0, LOAD, 0.6)
        await ends.handshake.ready(b"ready")
        await trio.testing.wait_all_tasks_blocked()
        kinds: list[str] = []
        while not kinds or kinds[-1] != "Ready":
            message, _ = await ends.root.receive_any()
            kinds.append(type(message).__name__)
        assert kinds in (["Ready"], ["Progress", "Ready"])


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(0, "start", 1.0), (1, "start", 1.0)], [("start", 0.0), ("start", 1.0)]),
        ([(0, LOAD, 0.5), (1, LOAD, 0.2)], [("start", 0.0), (LOAD, 0.2)]),
        (
            [(1, LOAD, 1.0), (1, HASH, 1.0), (0, LOAD, 1.0), (0, HASH, 1.0)],
            [("start", 0.0), ("start", 0.0), (LOAD, 1.0), (HASH, 1.0)],
        ),
        ([(0, LOAD, 0.5), (1, LOAD, 0.9), (0, LOAD, 0.1)], [("start", 0.0), *[(LOAD, 0.5)] * 2]),
        ([(0, LOAD, 0.5), (1, LOAD, 0.5), (0, "start", 1.0)], [("start", 0), *[(LOAD, 0.5)] * 2]),
    ],
)
async def test_two_ranks_are_as_far_as_the_last_and_never_go_back(
    reports: list[tuple[int, str, float]], expected: list[tuple[str, float]]
) -> None:
    async with open_ends(ranks=2) as ends, trio.open_nursery() as nursery:
        await start_background_task(nursery, ends.reports.run_progress, name="progress")
        for report, all_ranks in zip(reports, expected, strict=True):
            ends.reports.progress(*report)
            assert await receive_progress(ends.root) == all_ranks
            await trio.testing.wait_all_tasks_blocked()  # it has noted that this was sent
        nursery.cancel_scope.cancel("the test is over")


@pytest.mark.slow
async def test_workers_are_told_of_by_pidfd_but_for_the_dead() -> None:
    with check_no_leaks():
        async with open_ends() as ends, open_process(spec_of("obedient"), ladder=PATIENT) as one:
            await receive_ready(one)
            async with open_process(spec_of("obedient"), ladder=PATIENT) as two:
                await receive_ready(two)
                await ends.reports.workers([one, two])
                message, fds = await ends.root.receive()
                assert message == WorkersChanged([one.pid, two.pid])
                assert len(fds) == 2
                signal.pidfd_send_signal(fds[1], signal.SIGKILL)
                await two.wait_exited()
                close_fds(fds)
            await ends.reports.workers([one, two])
            message, fds = await ends.root.receive()
            assert message == WorkersChanged([one.pid])
            assert len(fds) == 1
            os.close(fds[0])
