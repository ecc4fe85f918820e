"""Uses of the mains of frontend, engine and worker: in this process, their parent played here."""

import os
import pathlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import msgspec
import trio

from triolet.api import frontend_process
from triolet.api.settings import settings_to_text
from triolet.engine.config import EngineSettings
from triolet.engine.messages import (
    ENGINE_TO_ROOT,
    ROOT_TO_ENGINE,
    Drain,
    EngineInit,
    FrontendAddress,
    FrontendMembership,
    TreeRequest,
)
from triolet.engine.process import main as engine_process
from triolet.engine.worker import process as worker_process
from triolet.nurseries.processes.child import ChildFds, run_until_stopped
from triolet.runtime.messages import FRONTEND_TO_ROOT, ROOT_TO_FRONTEND
from triolet.runtime.processes.membership import EngineDirectory
from triolet.tests.api.test_frontend_process import FakeRoot, settings_for
from triolet.tests.cancellation.named_steps import DEADLINE_S, CancelAtStep, MainEnded
from triolet.tests.engine.worker.test_process import first_step, make_core
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import perform_parent_handshake
from triolet.transports.control.passed_fds import close_fds


@contextmanager
def open_ends() -> Iterator[tuple[socket.socket, ChildFds]]:
    """The parent's end of a control socket, and all that the child gets.

    The parent's end is closed by whoever wraps it.
    """
    death_fd, ours = os.pipe()
    words_fd = os.open(os.devnull, os.O_WRONLY)
    control, childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (control, childs):
        end.setblocking(False)
    try:
        with control, childs:
            yield control, ChildFds(childs, death_fd, words_fd)
    finally:
        close_fds([death_fd, ours, words_fd])


async def run_main(main: Callable[[ChildFds], Awaitable[None]], fds: ChildFds) -> None:
    """As in a process of its own, death monitor and all. Raises its error, or `MainEnded`."""
    code = await run_until_stopped(
        main, fds, parent_pid=os.getppid(), exit_process=_fail, exit_bound_s=DEADLINE_S
    )
    raise MainEnded(code)


def _fail(code: int) -> None:
    raise AssertionError(f"the main function was overdue: {code}")


async def run_beside(
    steps: CancelAtStep,
    main: Callable[[ChildFds], Awaitable[None]],
    fds: ChildFds,
    part: Callable[[], Awaitable[object]],
) -> None:
    """`main`, until `part` of its parent is through or it has ended by itself."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_main, main, fds)
        await steps.play(part)
        nursery.cancel_scope.cancel("the use is over")


async def use_frontend(folder: pathlib.Path, steps: CancelAtStep) -> None:
    """Connections, a question, a membership, a drain."""
    with open_ends() as (control, fds), ExitStack() as owned:
        channel = ControlChannel(control, sends=ROOT_TO_FRONTEND, receives=FRONTEND_TO_ROOT)
        root = FakeRoot(owned.enter_context(channel), control)

        async def part() -> None:
            await root.bring_up(settings_to_text(settings_for(folder)), pid=os.getpid())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(root.run)
                assert (await root.get("/live"))[0] == 200
                await root.tree()
                directory = EngineDirectory()
                directory.handle_starting(0, 2)
                await root.control.send(directory.handle_gone(0, "was lost"))
                await root.control.send(Drain())
                await root.wait_load(connections_received=1, open_connections=0)
                nursery.cancel_scope.cancel("that is all")

        await run_beside(steps, frontend_process.main, fds, part)


async def use_engine(folder: pathlib.Path, steps: CancelAtStep) -> None:
    """An engine with a real worker: boot, a frontend that never answers, a question, a drain."""
    settings = EngineSettings(model=str(folder), executor="null")
    absent = FrontendAddress(0, 1, "ipc://@triolet-absent-in", "ipc://@triolet-absent-out")
    with open_ends() as (control, fds), ExitStack() as owned:
        channel = owned.enter_context(
            ControlChannel(control, sends=ROOT_TO_ENGINE, receives=ENGINE_TO_ROOT)
        )

        async def part() -> None:
            init = EngineInit(
                run_id="t", rank=0, epoch=2, settings=settings, membership=FrontendMembership(0, [])
            )
            await perform_parent_handshake(
                channel,
                msgspec.msgpack.encode(init),
                who="engine 0",
                role="engine",
                pid=os.getpid(),
                boot_timeout_s=DEADLINE_S,
                on_other=_drop,
            )
            await channel.send(FrontendMembership(1, [absent]))
            await channel.send(Drain())
            await channel.send(TreeRequest(1))
            await channel.send(TreeRequest(2))
            await channel.receive()  # one of the two may have been cancelled

        await run_beside(steps, engine_process.main, fds, part)


def _drop(_message: object, fds: Sequence[int]) -> None:
    close_fds(fds)


async def use_worker(folder: pathlib.Path, steps: CancelAtStep) -> None:
    """Boot, a step, a question."""
    settings = EngineSettings(model=str(folder), executor="null", max_num_seqs=4)
    with open_ends() as (control, fds), ExitStack() as owned:
        core = make_core(owned, control)

        async def part() -> None:
            await core.bring_up(settings, os.getpid())
            await core.run(first_step())
            await core.tree()

        await run_beside(steps, partial(worker_process.main), fds, part)
