"""A child ends with code 0 after an ordered stop alone, and says why it ends otherwise."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import attrs
import pytest
import trio

from triolet.nurseries.processes.boot import EXIT_FAILED, EXIT_ORPHANED, EXIT_STOPPED
from triolet.nurseries.processes.child import (
    DEATH_MONITOR,
    EXIT_STOP_OVERDUE,
    ChildFds,
    StopOrder,
    run_until_stopped,
)
from triolet.nurseries.processes.last_words import LastWords
from triolet.nurseries.processes.process import LadderTimes, open_process
from triolet.nurseries.processes.process_exit import EXIT_CHILD_KILLED, ProcessExit
from triolet.tests.live_tasks import find_background_task

from ...leaks import check_no_leaks
from ..child_programs import (
    open_child,
    receive_word,
    spec_of,
    tell,
)


@attrs.define(eq=False)
class Parent:
    """The parent's ends, in this very process, and what the child would have exited with."""

    fds: ChildFds
    death_fd: int
    words: LastWords
    exits: list[int] = attrs.field(factory=list)

    async def run(self, main: Callable[[ChildFds], Awaitable[None]], **bounds: float) -> int:
        return await run_until_stopped(
            main, self.fds, parent_pid=os.getppid(), exit_process=self.exits.append, **bounds
        )

    def ask_to_stop(self) -> None:
        os.close(self.death_fd)
        self.death_fd = -1


@pytest.fixture
async def parent() -> AsyncIterator[Parent]:
    with check_no_leaks():
        control, child_control = socket.socketpair()
        child_death_fd, death_fd = os.pipe()
        words = LastWords.create()
        parent = Parent(ChildFds(child_control, child_death_fd, words.fd), death_fd, words)
        with control, child_control:
            yield parent
        if parent.death_fd >= 0:
            os.close(parent.death_fd)
        os.close(child_death_fd)
        words.close()


async def work_forever(fds: ChildFds) -> None:
    await trio.sleep_forever()


async def test_closing_the_death_pipe_cancels_the_main_function(parent: Parent) -> None:
    async def main(fds: ChildFds) -> None:
        parent.ask_to_stop()
        await trio.sleep_forever()

    assert await parent.run(main) == EXIT_STOPPED
    assert parent.words.read() == ""


async def test_returning_without_an_order_is_a_failure(parent: Parent) -> None:
    async def main(fds: ChildFds) -> None:
        await trio.lowlevel.checkpoint()

    assert await parent.run(main) == EXIT_FAILED
    assert "without an order to stop" in parent.words.read()


async def test_an_error_comes_bare(parent: Parent) -> None:
    async def main(fds: ChildFds) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await parent.run(main)


async def test_an_error_in_the_cleanup_after_an_order_is_a_failure(parent: Parent) -> None:
    async def main(fds: ChildFds) -> None:
        parent.ask_to_stop()
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while tidying up")

    with pytest.raises(ValueError, match="tidying"):
        await parent.run(main)


async def test_an_overdue_stop_exits_and_tells_who_is_late(parent: Parent) -> None:
    """In the process itself `exit_process` does not return; here the cleanup then ends."""
    overdue = trio.Event()

    def exit_process(code: int) -> None:
        parent.exits.append(code)
        overdue.set()

    async def main(fds: ChildFds) -> None:
        parent.ask_to_stop()
        with trio.CancelScope(shield=True):
            await overdue.wait()

    await run_until_stopped(
        main, parent.fds, parent_pid=os.getppid(), exit_process=exit_process, exit_bound_s=0
    )
    assert parent.exits == [EXIT_STOP_OVERDUE]
    assert "asked this process to stop, but:" in parent.words.read()
    assert DEATH_MONITOR in parent.words.read()


async def test_a_main_function_that_ends_in_time_is_not_overdue(parent: Parent) -> None:
    async def main(fds: ChildFds) -> None:
        parent.ask_to_stop()
        await trio.sleep_forever()

    assert await parent.run(main, exit_bound_s=1000) == EXIT_STOPPED
    assert parent.exits == []


async def test_a_machine_that_stood_still_does_not_make_it_overdue(
    parent: Parent, mock_clock: trio.testing.MockClock
) -> None:
    async def main(fds: ChildFds) -> None:
        parent.ask_to_stop()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()  # the monitor counts the time
            mock_clock.jump(1000)
            await trio.testing.wait_all_tasks_blocked()

    assert await parent.run(main, exit_bound_s=10) == EXIT_STOPPED
    assert parent.exits == []


async def test_without_its_death_monitor_no_child_lives(parent: Parent) -> None:
    async def main(fds: ChildFds) -> None:
        find_background_task(DEATH_MONITOR).cancel("the test wants to see")
        await trio.sleep_forever()

    assert await parent.run(main) == EXIT_FAILED


async def test_without_a_parent_it_ends_at_once(parent: Parent) -> None:
    """Not by a cancellation, whose ends a journal on disk would keep."""
    seen: list[int] = []

    async def main(fds: ChildFds) -> None:
        try:
            await trio.sleep_forever()
        finally:
            seen.extend(parent.exits)

    async with open_process(spec_of("deaf")) as stranger:
        stranger.send_signal(signal.SIGKILL)
        await stranger.wait_exited()
        code = await run_until_stopped(
            main, parent.fds, parent_pid=stranger.pid, exit_process=parent.exits.append
        )
        assert code == EXIT_ORPHANED
        assert seen == [EXIT_ORPHANED]


def test_the_first_reason_stays() -> None:
    stop = StopOrder()
    stop.order("first")
    stop.order("second")
    assert stop.reason == "first"
    assert stop.scope.cancel_called


async def exit_of(module: str, act: str) -> ProcessExit:
    """Run a child to its end: `act` is a word for it, or "ask"."""
    async with open_child(module) as process:
        if act == "ask":
            process.ask_to_stop()
        else:
            tell(process, act)
        return await process.wait_exited()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "act", "code", "words"),
    [
        ("obedient", "ask", EXIT_STOPPED, ""),
        ("obedient", "go", EXIT_FAILED, "ValueError: ordered to fail"),
        ("slow_to_stop", "ask", EXIT_STOP_OVERDUE, "but:\noverdue (pid"),
        ("depends", "SIGKILL", EXIT_CHILD_KILLED, "was killed by SIGKILL"),
        ("depends", "SIGSEGV", EXIT_FAILED, "was killed by SIGSEGV"),
    ],
)
async def test_exit_codes_of_real_children(module: str, act: str, code: int, words: str) -> None:
    seen = await exit_of(module, act)
    assert seen.code == code
    assert words in seen.last_words
    assert bool(words) == bool(seen.last_words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "word", "code"), [("obedient", "go", EXIT_FAILED), ("on_order", "exit 7", 7)]
)
async def test_a_signal_to_every_process_of_the_tree_stops_no_child(
    module: str, word: str, code: int
) -> None:
    """Neither in the main function nor, as `on_order` stands for, during the imports."""
    async with open_child(module) as process:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
        tell(process, word)
        assert (await process.wait_exited()).code == code


@pytest.mark.slow
async def test_sigterm_of_the_ladder_does_not_cut_the_cleanup_short() -> None:
    async with open_child("tidies_up") as process:
        process.ask_to_stop()
        assert await receive_word(process) == "stopping"
        process.send_signal(signal.SIGTERM)
        tell(process, "you may")
        assert (await process.wait_exited()).code == EXIT_STOPPED


@pytest.mark.slow
async def test_sigterm_of_the_ladder_ends_a_child_that_still_imports() -> None:
    ladder = LadderTimes(ask_s=0.02, terminate_s=30, kill_s=30)
    async with open_child("imports_for_long", ladder=ladder) as process:
        pass
    assert process.exit is not None
    assert process.exit.code == EXIT_STOPPED
