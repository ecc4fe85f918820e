"""All form processes of one run, one for each frontend: supervised, and linked to its newest life.

The root owns them, so that a frontend's death leaves its form process warm, and the other way
round. Whenever both are ready, each gets one end of a new socketpair. Nothing waits for a form
process to start; forms that come before it do. Embedded, the caller's process holds the fleet.
"""

import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import attrs
import msgspec
import trio

from ...nurseries.processes.hang_watch import BLOCKED_S
from ...nurseries.processes.kernel import KERNEL, Kernel
from ...nurseries.processes.spares import Readiness
from ...nurseries.processes.watched import Watched
from ...nurseries.tasks.supervisor import RestartLimitExceeded
from ...transports.control.passed_fds import close_fds
from ..config import RuntimeSettings
from ..events import ChildFailed, OnEvent
from ..messages import FORMS_TO_ROOT, ROOT_TO_FORMS, FormLink, FormsInit
from .child_process import ChildProcess, run_child_process
from .process_supervisor import ProcessSupervisor, RunChild, WorkerlessOwner

# By name, not by import: what checks forms is not this process's business.
FORM_MODULE = "triolet.runtime.forms.form_process"
# A form process takes orders at once, or hangs.
LINK_TIMEOUT_S = 2.0


@attrs.define(eq=False)
class FormFleet(WorkerlessOwner):
    """The form processes of one run, ranks 0 to `count` - 1.

    `on_link` gets a frontend's end of a new socketpair, which is its own then.
    """

    count: int
    settings: RuntimeSettings
    epochs: Iterator[int]
    on_link: Callable[[int, socket.socket], None]
    on_event: OnEvent
    # Gets what a form process says of itself while it is watched.
    on_watched: Callable[[str], None] = lambda text: None
    module: str = FORM_MODULE
    readiness: Readiness = attrs.field(factory=Readiness)
    run_child: RunChild = run_child_process
    kernel: Kernel = KERNEL
    chance: random.Random = attrs.field(factory=random.Random)
    processes: ProcessSupervisor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.processes = ProcessSupervisor(
            owner=self,
            role="forms",
            module=self.module,
            count=self.count,
            sends=ROOT_TO_FORMS,
            receives=FORMS_TO_ROOT,
            settings=self.settings,
            epochs=self.epochs,
            on_event=self.on_event,
            blocked_s=BLOCKED_S,
            gives_up_served=False,
            readiness=self.readiness,
            run_child=self.run_child,
            kernel=self.kernel,
            chance=self.chance,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `forms`: see `ProcessSupervisor.run`."""
        await self.processes.run(task_status=task_status)

    def link(self, rank: int) -> None:
        """A new life of this frontend is ready: connect it with its form process, if that is."""
        child = self.processes.ready.get(rank)
        if child is None:
            return  # linked when it is ready
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            # Forms wait, and are answered by "come back" in the end.
            self.on_event(ChildFailed(f"forms {rank}", f"there is no descriptor: {error}"))
            return
        self.on_link(rank, ours)
        self.processes.start_task(send_form_link, child, theirs, name="form-link")

    def restart(self, rank: int) -> None:
        """Begin a form process anew; what it checks is checked again."""
        self.processes.restart(rank)

    # ---- as the owner of its processes

    def handle_starting(self, rank: int, epoch: int) -> bytes:
        """See `ProcessOwner`."""
        return msgspec.msgpack.encode(FormsInit(rank, epoch))

    def handle_ready(self, rank: int, child: ChildProcess, payload: bytes) -> None:
        """A form process takes links; its frontend gets one if it is there."""
        self.link(rank)

    def handle_message(self, rank: int, message: object, fds: Sequence[int]) -> None:
        """A form process says what it does, while it is watched."""
        close_fds(fds)
        if isinstance(message, Watched):
            self.on_watched(message.text)

    def handle_given_up(self, rank: int, error: RestartLimitExceeded) -> None:
        """Forms of this frontend are answered by "come back", until the place is revived."""
        self.on_event(ChildFailed(f"forms {rank}", self.processes.failed[rank]))


def link_frontend(frontends: ProcessSupervisor, rank: int, end: socket.socket) -> None:
    """Give a frontend its end of a link; it is closed if no process of the rank is ready."""
    child = frontends.ready.get(rank)
    if child is None:
        end.close()
    else:
        frontends.start_task(send_form_link, child, end, name="form-link")


async def send_form_link(child: ChildProcess, end: socket.socket) -> None:
    """Task `form-link`: give a process its end of a link.

    One that takes nothing is about to be replaced, and its next life is linked anew.
    """
    with end, suppress(trio.BrokenResourceError, trio.TooSlowError):
        await child.send(FormLink(), LINK_TIMEOUT_S, [end.fileno()])
