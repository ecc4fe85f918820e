"""Form process: checks what clients ask answers to be like, before anyone else compiles it.

A library that reads schemas, regexes and grammars may crash on one, run for minutes, or fill
memory. Here forked copies of this process check, with bounds (`forked_call`), so the death of one
is an answer and this process goes on; one copy waits for the next form. A form is refused, or found
to crash, only by a copy that has checked none before it. The root owns it, one for
each frontend, and gives it a socket to each life of that frontend. It starts no thread, since it
forks.
"""

import os
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Protocol

import attrs
import msgspec
import trio

from ...engine.control_messages import TreeReply, TreeRequest
from ...engine.errors import InvalidParameter
from ...engine.grammar.text import check_grammar
from ...engine.structured_outputs import GrammarKind, StructuredOutputs
from ...nurseries.processes.child import ChildFds, run_child
from ...nurseries.processes.forked_call import CallLimits, ForkedCallDied, ForkedCalls
from ...nurseries.processes.heap import settle_heap
from ...nurseries.processes.progress_page import open_slot, passes_shown
from ...nurseries.processes.spares import SPARE
from ...nurseries.processes.title import set_title
from ...nurseries.processes.watched import Row, Watch, WatchedProcess
from ...nurseries.tasks.background import start_background_task_soon, waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import open_service, start_service_soon
from ...nurseries.tasks.task_rows import TaskRows
from ...nurseries.tasks.task_tree import ProcessTree, task_tree
from ...transports.codec import MalformedMessage
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import perform_child_handshake
from ...transports.control.passed_fds import close_fds
from ..messages import FORMS_TO_ROOT, ROOT_TO_FORMS, FormLink, FormsInit
from .messages import FROM_FORMS, TO_FORMS, CheckForm, FormChecked, FormOutcome

# Forms in use take milliseconds, large schemas some hundred; a compilation has fuel for no more
# than a second (`grammar.text.LIMITS`). An engine compiles a second time with twice the stack, so
# that what passes here does not overflow there.
LIMITS = CallLimits(cpu_s=3, memory_bytes=512 << 20, stack_bytes=4 << 20, niceness=10)
# A frontend has `form_queue.CHECKS_MAX` under way; what comes beyond that is not read.
CHECKS_MAX = 8
_ACCEPTED = b"\x00"
# Goes through all that a schema of average size does.
_PRACTICE = StructuredOutputs.json(
    {"type": "object", "properties": {"a": {"enum": ["b"]}, "c": {"type": "array", "items": {}}}}
)


class Calls(Protocol):
    """Calls of the function that checks one form: `ForkedCalls`."""

    def open_call(self, argument: bytes) -> AbstractAsyncContextManager[bytes]:
        """The result of one."""

    def prepare(self) -> None:
        """Make the next one shorter."""

    @property
    def waiting_pid(self) -> int | None:
        """The process that waits for the next one."""

    async def aclose(self) -> None:
        """There are no more."""


def encode_form(form: StructuredOutputs) -> bytes:
    """A form as the argument of its check."""
    return f"{form.kind}\n{form.text}".encode()


def check(argument: bytes) -> bytes:
    """Check one form; the reason of its refusal, or `_ACCEPTED`."""
    kind, _, text = argument.decode().partition("\n")
    try:
        check_grammar(StructuredOutputs(GrammarKind(kind), text))
    except InvalidParameter as refusal:
        return refusal.reason.encode()
    return _ACCEPTED


def forked_calls(function: Callable[[bytes], bytes] = check) -> ForkedCalls:
    """Checks by `function` in copies of this process; one goes on after a form that is served."""
    return ForkedCalls(function, LIMITS, encode_form(_PRACTICE), is_good=_ACCEPTED.__eq__)


async def main(child: ChildFds, make_calls: Callable[[], Calls] = forked_calls) -> None:
    """Check forms until a stop is ordered."""
    control = ControlChannel(child.control, sends=FORMS_TO_ROOT, receives=ROOT_TO_FORMS)
    set_title("forms, waiting")
    handshake = await perform_child_handshake(control, "forms")
    init = msgspec.msgpack.decode(handshake.init, type=FormsInit)
    set_title(f"forms {init.rank}")
    page_fd = handshake.fds[0] if handshake.fds else None
    try:
        with open_slot(page_fd, 0) as progress, passes_shown(progress):
            settle_heap()
            await handshake.ready(b"")
            await FormProcess(init, control, make_calls()).run()
    finally:
        close_fds(handshake.fds)


@attrs.define(eq=False)
class FormProcess:
    """Parts of this process; a `Watchable`."""

    init: FormsInit
    control: ControlChannel
    calls: Calls
    # Around what serves the newest link.
    _link: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # Rung when a check has ended.
    _ended: Doorbell = attrs.field(factory=Doorbell, init=False)
    _checked: int = attrs.field(default=0, init=False)
    _died: int = attrs.field(default=0, init=False)
    _tasks: TaskRows = attrs.field(factory=TaskRows, init=False)
    _watched: WatchedProcess = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._watched = WatchedProcess(self, self.control.send)

    async def run(self) -> None:
        """Serve until cancelled. Raises `trio.EndOfChannel` when the root has left."""
        try:
            async with trio.open_nursery() as nursery:
                control = partial(self._run_control, nursery)
                async with (
                    open_service(self._watched.run, name="watched"),
                    open_service(control, name="control"),
                ):
                    self.calls.prepare()
                    await trio.sleep_forever()
        finally:
            await self.calls.aclose()

    async def _run_control(
        self,
        nursery: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task `control`: the root's orders."""
        task_status.started()
        while True:
            try:
                with waiting_for("orders"):
                    message, fds = await self.control.receive()
            except MalformedMessage:
                continue
            match message:
                case FormLink() if fds:
                    self._link.cancel("another life of the frontend is there")
                    self._link, link = trio.CancelScope(), socket.socket(fileno=fds.pop(0))
                    start_service_soon(nursery, self._serve, link, self._link, name="form-link")
                case Watch():
                    self._watched.handle_watch(message)
                case TreeRequest(call_id=call_id):
                    await self.control.send(TreeReply(call_id, self._tree_text()))
                case _:  # a link whose descriptor was lost: the frontend's end is closed, too
                    pass
            close_fds(fds)

    async def _serve(self, link: socket.socket, scope: trio.CancelScope) -> None:
        """Background task `form-link`: the checks of one life of the frontend, until it is gone."""
        with ControlChannel(link, sends=FROM_FORMS, receives=TO_FORMS) as channel, scope:
            async with trio.open_nursery() as nursery:
                with suppress(trio.EndOfChannel, trio.BrokenResourceError):
                    while True:
                        await self._take(channel, nursery)
                nursery.cancel_scope.cancel("the frontend is gone")

    async def _take(self, channel: ControlChannel, nursery: trio.Nursery) -> None:
        """Begin the next check when there is room for it."""
        with waiting_for("forms"):
            while len(nursery.child_tasks) >= CHECKS_MAX:
                await self._ended.wait()
            try:
                order, fds = await channel.receive()
            except MalformedMessage:
                return  # logged by the channel
        close_fds(fds)
        assert isinstance(order, CheckForm), "the codec lets nothing else through"
        start_background_task_soon(nursery, self._check, channel, order, name="form-check")

    async def _check(self, channel: ControlChannel, order: CheckForm) -> None:
        """Task `form-check`: one form. Cancelled, it says that its check is lost."""

        def answer(outcome: FormOutcome, reason: str = "") -> None:
            self._checked += 1
            self._died += outcome in (FormOutcome.CRASHED, FormOutcome.SPENT, FormOutcome.LOST)
            channel.send_nowait(FormChecked(order.check_id, outcome, reason))  # fits: it is bounded

        try:
            async with self.calls.open_call(encode_form(order.form)) as found:
                if found == _ACCEPTED:
                    answer(FormOutcome.ACCEPTED)
                else:
                    answer(FormOutcome.REFUSED, found.decode())
        except ForkedCallDied as death:
            own = FormOutcome.SPENT if death.is_spent else FormOutcome.CRASHED
            answer(own if death.is_own_fault else FormOutcome.LOST, death.cause)
        except OSError as error:  # no memory or descriptor for a copy
            answer(FormOutcome.LOST, str(error))
        except trio.Cancelled:
            answer(FormOutcome.LOST)  # a second one, of a check that has ended, is read by nobody
            raise
        finally:
            self._ended.ring()
        self.calls.prepare()

    # ---- as those see it who watch

    def begin(self) -> None: ...

    def sample(self) -> bool:
        return False

    async def look(self) -> list[Row]:
        row = {"place": self._name, "pid": os.getpid(), "facts": self._facts()}
        return [row | {"tasks": self._tasks.look()}]

    def series(self, *, is_whole: bool) -> dict[str, object]:
        return {}

    @property
    def _name(self) -> str:
        return f"forms {self.init.rank}"

    def _facts(self) -> dict[str, int]:
        return {"checked": self._checked, "checks that died": self._died}

    def _tree_text(self) -> str:
        facts: dict[str, str | int | float] = {"epoch": self.init.epoch, **self._facts()}
        waiting = self.calls.waiting_pid
        spares = [] if waiting is None else [ProcessTree(f"{SPARE}check", waiting, facts={})]
        tree = ProcessTree(
            self._name, os.getpid(), facts=facts, tasks=task_tree(), processes=spares
        )
        return msgspec.json.encode(tree).decode()


if __name__ == "__main__":
    run_child(main)
