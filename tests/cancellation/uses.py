"""Uses of each main function, in this process: its parent or its children are played by the test.

The root is `serve` with acting children; frontend, engine and worker have their parent played; the
bed is a frontend and an engine in one process, whose tasks are cancelled in mid-stream.
"""

import ctypes
import os
import pathlib
import secrets
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import attrs
import msgspec
import trio

from triolet.api import frontend_process
from triolet.api.commands.exits import EXIT_OK
from triolet.api.commands.serve import serve
from triolet.api.settings import settings_to_text
from triolet.engine.config import EngineSettings
from triolet.engine.control_messages import (
    ENGINE_TO_ROOT,
    ROOT_TO_ENGINE,
    Drain,
    EngineInit,
    FrontendAddress,
    FrontendMembership,
    TreeRequest,
)
from triolet.engine.messages import Utility
from triolet.engine.process import main as engine_process
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.engine.worker import process as worker_process
from triolet.fuzz.doubles.bed import open_bed
from triolet.nurseries.processes.child import ChildFds, run_until_stopped
from triolet.nurseries.processes.counter_page import open_counter_memory
from triolet.nurseries.processes.progress_page import open_page
from triolet.runtime.config import JournalSettings
from triolet.runtime.control.calls import ControlCall
from triolet.runtime.control.client import ControlCallFailed, ask_run
from triolet.runtime.control.run_folder import find_run
from triolet.runtime.events import Draining, Serving
from triolet.runtime.fleet.membership import EngineDirectory
from triolet.runtime.forms import form_process
from triolet.runtime.forms.messages import FROM_FORMS, TO_FORMS, CheckForm
from triolet.runtime.journal.disk_file import prepare_disk_journal
from triolet.runtime.messages import (
    FORMS_TO_ROOT,
    FRONTEND_TO_ROOT,
    ROOT_TO_FORMS,
    ROOT_TO_FRONTEND,
    FormLink,
    FormsInit,
)
from triolet.tests.api.test_frontend_process import FakeRoot, settings_for
from triolet.tests.cancellation.named_steps import DEADLINE_S, CancelAtStep, MainEnded
from triolet.tests.engine.steps import first_step
from triolet.tests.engine.worker.test_process import make_core
from triolet.tests.runtime.acting import Diary
from triolet.tests.runtime.fleet.test_root import plan_of
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import perform_parent_handshake
from triolet.transports.control.passed_fds import close_fds

# Which of several tasks of one name: the frontend's are further out in the tree than the engine's.
ENGINE, FRONTEND = -1, 0
PARAMS = SamplingParams(max_tokens=6, seed=7, ignore_eos=True)
FORMED = attrs.evolve(PARAMS, structured_outputs=StructuredOutputs.regex("[a-z]*"))
# Less than a stream has, so that it cannot end before its link is cut.
WINDOW_TOKENS = 2


async def use_bed(folder: pathlib.Path, steps: CancelAtStep) -> None:
    """All that a frontend does: streams, aborts, a lost link, questions."""
    steps.held = steps.end == ENGINE
    async with open_bed(folder, window_tokens=WINDOW_TOKENS) as bed:
        steps.held = False
        (peer,) = bed.client.balancer.engines
        async with bed.frontend.generate("hello world", PARAMS) as stream:
            await stream.__anext__()
            await bed.client.call_utility(peer, Utility.TASK_TREE, timeout_s=DEADLINE_S)
            bed.hub.links.handle_broken(peer, 1, "the test breaks it")
            await stream.collect()
        async with bed.frontend.generate("hello", PARAMS) as stream:
            await stream.__anext__()
        async with bed.frontend.generate("hello", FORMED) as stream:
            await stream.collect()
        await bed.wait_quiet()
        assert bed.client.ledger.placed.count(peer) == 0
        await steps.finish()


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
        page = owned.enter_context(open_page(1))
        counters = owned.enter_context(open_counter_memory(1))
        journal = os.open(folder / "journal", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        owned.callback(os.close, journal)
        prepare_disk_journal(journal, 0)
        settings = settings_for(folder, journal=JournalSettings(folder=str(folder), sync_ms=1))

        async def part() -> None:
            text, beside = settings_to_text(settings), [page.fd, journal, counters.fd]
            names = ["progress", "journal", "counters"]
            await root.bring_up(text, pid=os.getpid(), fds=beside, descriptors=names)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(root.run)
                assert (await root.get("/live"))[0] == 200
                link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with link, theirs:
                    await root.control.send(FormLink(), [theirs.fileno()])
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
    events = f"ipc://@triolet-{secrets.token_hex(8)}"
    settings = EngineSettings(
        model=str(folder),
        executor="null",
        kv_events_endpoint=events,
        kv_events_replay_endpoint=f"{events}-replay",
    )
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
            await core.run(first_step(row=2))
            await core.tree()

        await run_beside(steps, partial(worker_process.main), fds, part)


async def use_forms(folder: pathlib.Path, steps: CancelAtStep) -> None:
    """Boot, a link, a form, a question; then the frontend is gone."""
    with open_ends() as (control, fds), ExitStack() as owned:
        channel = owned.enter_context(
            ControlChannel(control, sends=ROOT_TO_FORMS, receives=FORMS_TO_ROOT)
        )

        async def part() -> None:
            await perform_parent_handshake(
                channel,
                msgspec.msgpack.encode(FormsInit(0, 1)),
                who="forms 0",
                role="forms",
                pid=os.getpid(),
                boot_timeout_s=DEADLINE_S,
                on_other=_drop,
            )
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ControlChannel(ours, sends=TO_FORMS, receives=FROM_FORMS) as link:
                with theirs:
                    await channel.send(FormLink(), [theirs.fileno()])
                await link.send(CheckForm(1, StructuredOutputs.regex("a")))
                await link.receive()
                await channel.send(TreeRequest(1))
                await channel.receive()

        await run_beside(steps, partial(form_process.main, make_calls=_CallsHere), fds, part)


class _CallsHere:
    """Checks in this process, since one with threads cannot fork."""

    waiting_pid = None

    @asynccontextmanager
    async def open_call(self, argument: bytes) -> AsyncIterator[bytes]:
        await trio.lowlevel.checkpoint()
        yield form_process.check(argument)

    def prepare(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


# From the kernel's prctl.h.
_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def as_command() -> Iterator[Path]:
    """What a command may do to its process is undone. The folder is that of all runs."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            yield Path(folder, "triolet")
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


async def ask_tree(steps: CancelAtStep) -> None:
    """Until it is answered in time, or the task that answers has been cancelled."""
    while True:
        try:
            await ask_run(find_run(), ControlCall.TREE)
        except ControlCallFailed:
            if not steps.reached:
                continue
        return


async def use_root(steps: CancelAtStep, spares: int = 0) -> None:
    """A client, a question, an orphan's death, and SIGINT; with so many spares of either kind."""
    diary = Diary()

    def on_event(event: object) -> None:
        steps.over = steps.over or isinstance(event, Draining)
        diary(event)

    async def part() -> None:
        url = (await diary.wait_for(Serving)).url
        host, _, port = url.removeprefix("http://").rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as client:
            assert await client.receive_some(100)
        await ask_tree(steps)
        os.kill(os.getpid(), signal.SIGCHLD)
        if steps.reached and steps.fatal:
            return
        os.kill(os.getpid(), signal.SIGINT)
        await diary.wait_for(Draining)

    plan = plan_of(changes={"spare_engines": spares, "spare_frontends": spares})
    with as_command() as runs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(steps.play, part)
            assert await serve(plan, on_event) == EXIT_OK
            nursery.cancel_scope.cancel("served to the end")
        left = os.listdir(runs) if runs.exists() else []
        assert left == [], "the run folder is gone"
