"""The use of the root: `serve` in this process, with acting children, from start to drain."""

import ctypes
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from triolet.api.commands.exits import EXIT_OK
from triolet.api.commands.serve import serve
from triolet.runtime.events import Draining, Serving
from triolet.runtime.messages import ControlCall
from triolet.runtime.processes.control_server import ControlCallFailed, ask_run
from triolet.runtime.processes.run_folder import find_run
from triolet.tests.cancellation.named_steps import CancelAtStep
from triolet.tests.runtime.acting import Diary, acting_settings
from triolet.tests.runtime.processes.test_root import plan_of

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


async def use_root(steps: CancelAtStep) -> None:
    """A client, a question, an orphan's death, and SIGINT."""
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

    settings = attrs.evolve(acting_settings(["ready"]), spare_engines=1, spare_frontends=1)
    plan = plan_of(settings=settings)
    with as_command() as runs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(steps.play, part)
            assert await serve(plan, on_event) == EXIT_OK
            nursery.cancel_scope.cancel("served to the end")
        left = os.listdir(runs) if runs.exists() else []
        assert left == [], "the run folder is gone"
