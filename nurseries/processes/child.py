"""Child's side of a process: one trio run that ends when its parent orders it, or is gone.

An ordered stop is the end of the death pipe. It cancels the main function, and if that does not end
within a bound, the process ends without it. Only an ordered stop exits with code 0; anything else
is a failure, with its text in the last words.
"""

import os
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

import attrs
import trio

from ..tasks.background import start_background_task, waiting_for
from ..tasks.service import single_error, single_errors_unwrapped
from ..tasks.task_tree import ProcessTree, render_tree, task_tree
from .boot import (
    EXIT_FAILED,
    EXIT_ORPHANED,
    EXIT_SHORTAGE,
    EXIT_STOPPED,
    arm_death_signal,
    code_of,
    end_by,
    take_signals,
)
from .death_watch import PARENT_GONE, monitor_parent
from .fork_server import serve_forks
from .heap import settle_modules
from .last_words import write_last_words
from .process_exit import EXIT_CHILD_KILLED, EXIT_CHILD_STARVED, ProcessDied
from .spawned import FORKS, Spawned

# The whole ladder of a parent takes half of this, so it matters only to a child without one.
EXIT_BOUND_S = 5.0
# In so many parts it is waited for: one in which the machine stood still is over for the main
# function as well, and the others are still to come.
EXIT_BOUND_PARTS = 10

# The main function was still cleaning up when its time was over.
EXIT_STOP_OVERDUE = 70

DEATH_MONITOR = "death-monitor"


@attrs.frozen(eq=False)
class ChildFds:
    """Descriptors that the parent passed down; they live as long as the process and are never
    closed.

    `control` is the child's end of the SOCK_SEQPACKET socketpair, blocking until it is wrapped.
    `ahead` are children of ours that `boot` has started: see `ProcessSpec.spawned`.
    """

    control: socket.socket
    death_fd: int
    words_fd: int
    ahead: tuple[Spawned, ...] = ()


@attrs.define(eq=False)
class StopOrder:
    """The stop of this process: `reason` is None until it is ordered; the first reason stays."""

    # Around the main function, and nothing else: the death monitor is outside of it.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ordered: trio.Event = attrs.field(factory=trio.Event)
    reason: str | None = None

    def order(self, reason: str) -> None:
        """Cancel the main function. Harmless when repeated."""
        if self.reason is None:
            self.reason = reason
            self.ordered.set()
            self.scope.cancel(reason)


def prepare_nothing(preparation: bytes) -> None:
    """A default that does nothing."""


def run_child(
    async_main: Callable[[ChildFds], Awaitable[None]],
    *,
    prepare: Callable[[bytes], object] = prepare_nothing,
    exit_bound_s: float = EXIT_BOUND_S,
) -> NoReturn:
    """Run `async_main(fds)` until a stop is ordered, then exit the process. Call it last of all.

    Leaves by `os._exit`: every scope has been left by then, and the interpreter's own tidying may
    hang or crash in C libraries. An error of `async_main` goes to the last words, with exit code 1;
    with 72 when it is the death of a process of its own that was killed from outside, with 74 when
    that was killed for want of memory, with 75 when either was refused memory, a descriptor or a
    thread.

    In a fork server this is where the copies begin, once it has called `prepare` with what the
    parent has for that. What this makes is in each copy; it starts no thread.
    """
    settle_modules()
    if sys.argv[4:] == [FORKS]:
        own = [int(word) for word in sys.argv[1:4]]
        (control_fd, death_fd, words_fd), ahead = serve_forks(own, prepare)
    else:
        control_fd, death_fd, words_fd, ahead = _fds_of(sys.argv)
    # `boot` has done this already, unless the module was started in some other way.
    parent_pid = arm_death_signal(control_fd)
    take_signals(lambda _number, _frame: None)  # an order comes by the death pipe
    for fd in (control_fd, death_fd, words_fd):
        os.set_inheritable(fd, False)
    fds = ChildFds(socket.socket(fileno=control_fd), death_fd, words_fd, ahead)
    try:
        code = trio.run(
            partial(
                run_until_stopped, async_main, fds, parent_pid=parent_pid, exit_bound_s=exit_bound_s
            )
        )
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        end_by(single_error(error), words_fd, _code_of)
    os._exit(code)


async def run_until_stopped(
    async_main: Callable[[ChildFds], Awaitable[None]],
    fds: ChildFds,
    *,
    parent_pid: int,
    exit_bound_s: float = EXIT_BOUND_S,
    exit_process: Callable[[int], object] = os._exit,
) -> int:
    """Run `async_main(fds)` beside the death monitor; return the exit code that it has earned.

    Raises what `async_main` raises. A death monitor that is cancelled takes the main function with
    it: without one, no child may live. `exit_process` is called with `EXIT_ORPHANED` at once if the
    parent is gone, and with `EXIT_STOP_OVERDUE` if `async_main` is not over `exit_bound_s` seconds
    after the order.
    """
    stop = StopOrder()
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            monitor = await start_background_task(
                nursery,
                partial(_run_death_monitor, exit_bound_s=exit_bound_s, exit_process=exit_process),
                stop,
                fds,
                parent_pid,
                name=DEATH_MONITOR,
            )
            with stop.scope:
                await async_main(fds)
            monitor.cancel("the main function has ended")
    if stop.reason is None:
        write_last_words(fds.words_fd, "the main function ended without an order to stop\n")
        return EXIT_FAILED
    return EXIT_ORPHANED if stop.reason == PARENT_GONE else EXIT_STOPPED


async def _run_death_monitor(
    stop: StopOrder,
    fds: ChildFds,
    parent_pid: int,
    *,
    exit_bound_s: float,
    exit_process: Callable[[int], object],
    task_status: trio.TaskStatus[None],
) -> None:
    def on_gone(reason: str) -> None:
        if reason == PARENT_GONE:  # as by the SIGKILL that comes: no journal is to have an end
            exit_process(EXIT_ORPHANED)
        stop.order(reason)

    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(
                partial(monitor_parent, fds.death_fd, parent_pid=parent_pid, on_gone=on_gone)
            )
            task_status.started()
            with waiting_for("an order to stop"):
                await stop.ordered.wait()
            nursery.cancel_scope.cancel("a stop has been ordered")
        with waiting_for("the main function to end"):
            for _ in range(EXIT_BOUND_PARTS):
                await trio.sleep(exit_bound_s / EXIT_BOUND_PARTS)
        tree = ProcessTree("overdue", os.getpid(), tasks=task_tree())
        write_last_words(fds.words_fd, "\n".join([f"{stop.reason}, but:", *render_tree(tree), ""]))
        exit_process(EXIT_STOP_OVERDUE)
    finally:
        stop.scope.cancel("the death monitor has ended")


def _code_of(error: BaseException) -> int:
    match error:
        case ProcessDied() if error.exit.was_killed:
            return EXIT_CHILD_KILLED
        case ProcessDied() if error.exit.was_starved:
            return EXIT_CHILD_STARVED
        case ProcessDied() if error.exit.was_short:
            return EXIT_SHORTAGE
        case _:
            return code_of(error)


def _fds_of(argv: list[str]) -> tuple[int, int, int, tuple[Spawned, ...]]:
    try:
        control_fd, death_fd, words_fd = map(int, argv[1:4])
        ahead = tuple(map(Spawned.decode, argv[4:]))
    except (ValueError, TypeError):
        sys.exit(f"{argv[0]} is started by its parent process with three fd numbers, not by hand")
    return control_fd, death_fd, words_fd, ahead
