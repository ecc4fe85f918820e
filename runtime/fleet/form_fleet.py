"""Form processes of one run, one for each frontend: supervised, and linked to its newest life.

The root owns them, so that a frontend's death leaves its form process warm, and the other way
round. Whenever both are ready, each gets one end of a new socketpair. Nothing waits for a form
process to start; forms that come before it do. Embedded, the caller's process holds the fleet.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import attrs
import msgspec
import trio

from ...nurseries.processes.hang_watch import BLOCKED_S
from ...nurseries.processes.watched import Watched
from ..events import ChildFailed
from ..launch.child import BecameReady, Child, ChildKind, GivenUp, PlaceEvent, Said
from ..launch.child_control import SEND_TIMEOUT_S
from ..messages import FORMS_TO_ROOT, ROOT_TO_FORMS, FormLink, FormsInit
from .fleet_parts import FleetParts
from .process_supervisor import ProcessSupervisor

# By name, not by import: what checks forms is not this process's business.
FORM_MODULE = "triolet.runtime.forms.form_process"


@attrs.define(eq=False)
class FormFleet:
    """The form processes of one run, ranks 0 to `count` - 1.

    `on_link` gets a frontend's end of a new socketpair, which is its own then.
    """

    count: int
    parts: FleetParts
    on_link: Callable[[int, socket.socket], None]
    # Gets what a form process says of itself while it is watched.
    on_watched: Callable[[str], None] = lambda text: None
    module: str = FORM_MODULE
    processes: ProcessSupervisor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.processes = ProcessSupervisor(
            owner=self,
            kind=ChildKind(
                role="forms",
                module=self.module,
                sends=ROOT_TO_FORMS,
                receives=FORMS_TO_ROOT,
                blocked_s=BLOCKED_S,
            ),
            count=self.count,
            parts=self.parts,
            gives_up_served=False,
        )

    def link(self, rank: int) -> None:
        """A new life of this frontend is ready: connect it with its form process, if that is."""
        child = self.processes.ready.get(rank)
        if child is None:
            return  # linked when it is ready
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            # Forms wait, and are answered by "come back" in the end.
            self.parts.on_event(ChildFailed(f"forms {rank}", f"there is no descriptor: {error}"))
            return
        self.on_link(rank, ours)
        self.processes.start_task(send_form_link, child, theirs, name="form-link")

    def restart(self, rank: int) -> None:
        """Begin a form process anew; what it checks is checked again."""
        self.processes.restart(rank)

    # ---- as the owner of its places

    def handle_starting(self, rank: int, epoch: int, descriptors: Sequence[str]) -> bytes:
        """A form process begins; its frontend gets a link when it is ready."""
        return msgspec.msgpack.encode(FormsInit(rank, epoch))

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """A form process takes links, says what it does while it is watched, or is given up.

        Forms of that frontend are answered by "come back" then, until the place is revived.
        """
        match event:
            case BecameReady():
                self.link(rank)
            case Said(message):
                if isinstance(message, Watched):
                    self.on_watched(message.text)
            case GivenUp(end):
                self.parts.on_event(ChildFailed(f"forms {rank}", end.reason))


@attrs.frozen
class FormLinks:
    """Form processes as an estate of frontends: each life is linked with the one of its rank."""

    forms: FormFleet

    def open(self, count: int) -> AbstractContextManager[object]:
        """Nothing: a fleet of its own has them."""
        return nullcontext()

    def handle_starting(self, rank: int, epoch: int) -> Mapping[str, int]:
        """Nothing: a link is passed when both ends are ready."""
        return {}

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """A new life of a frontend takes links."""
        if isinstance(event, BecameReady):
            self.forms.link(rank)


def link_frontend(frontends: ProcessSupervisor, rank: int, end: socket.socket) -> None:
    """Give a frontend its end of a link; it is closed if no process of the rank is ready."""
    child = frontends.ready.get(rank)
    if child is None:
        end.close()
    else:
        frontends.start_task(send_form_link, child, end, name="form-link")


async def send_form_link(child: Child, end: socket.socket) -> None:
    """Task `form-link`: give a process its end of a link.

    One that takes nothing is about to be replaced, and its next life is linked anew.
    """
    with end, suppress(trio.BrokenResourceError, trio.TooSlowError):
        await child.control.send(FormLink(), SEND_TIMEOUT_S, [end.fileno()])
