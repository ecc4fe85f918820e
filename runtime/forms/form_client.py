"""Form checker of a frontend: asks the process that checks forms, however often that one changes.

The shell over `FormQueue`. The root gives a new socket whenever there is a new process
(`handle_link`); until the first one comes, and between two, forms wait. `LocalForms` checks in the
caller's own process, whose risk that is then.
"""

import socket
from typing import Protocol

import attrs
import trio

from ...engine.grammar.text import check_grammar
from ...engine.structured_outputs import StructuredOutputs
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import start_service_soon
from ...transports.codec import MalformedMessage
from ...transports.control.channel import ControlChannel
from ..errors import FormsUnavailable
from .form_queue import FormQueue
from .messages import FROM_FORMS, TO_FORMS, FormChecked

# A check takes milliseconds, at most seconds of a processor, of which a machine whose own work
# fills it gives a tenth to those behind it.
WAIT_S = 60.0


class FormChecker(Protocol):
    """Whether a form can be served."""

    async def check(self, form: StructuredOutputs, principal: str) -> None:
        """Return if it can. Raises `InvalidParameter`, with the reason, or `FormsUnavailable`."""


@attrs.define(eq=False)
class LocalForms:
    """Checks in a thread of this process: a fault of the mask library ends the process."""

    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))

    async def check(self, form: StructuredOutputs, principal: str) -> None:
        """Check in a thread. Cancellation waits for the end of the check."""
        await trio.to_thread.run_sync(check_grammar, form, limiter=self._limiter)
        await trio.lowlevel.checkpoint_if_cancelled()


@attrs.define(eq=False)
class FormClient:
    """Checks by way of another process. `run` must run."""

    queue: FormQueue = attrs.field(factory=FormQueue)
    wait_s: float = WAIT_S
    # Set when the first form is to be checked.
    wanted: trio.Event = attrs.field(factory=trio.Event, init=False)
    # {digest: set at the check's end}
    _ended: dict[bytes, trio.Event] = attrs.field(factory=dict, init=False)
    # The newest socket, until it is taken.
    _link: socket.socket | None = attrs.field(default=None, init=False)
    # Rung when there is something to send, or a new socket: `run` waits, or `_send`, never both.
    _changed: Doorbell = attrs.field(factory=Doorbell, init=False)
    _scope: trio.CancelScope | None = attrs.field(default=None, init=False)

    async def check(self, form: StructuredOutputs, principal: str) -> None:
        """Ask the form process. No checkpoint if the form is known. Cancellation: it checks on."""
        verdict = self.queue.verdict(form, trio.current_time())
        if verdict is None:
            check = self.queue.handle_wanted(form, principal)
            self.wanted.set()
            ended = self._ended.setdefault(check.digest, trio.Event())
            self._changed.ring()
            try:
                with trio.move_on_after(self.wait_s), waiting_for("its form to be checked"):
                    await ended.wait()
            finally:
                self.queue.handle_left(check)
                if check.ended:
                    self._ended.pop(check.digest, None)
            verdict = check.verdict
        if verdict is None:
            if check.check_id:
                raise FormsUnavailable("its check has not ended yet")
            raise FormsUnavailable("no process is there to check it")
        verdict.raise_refusal()

    def handle_link(self, link: socket.socket) -> None:
        """A new process checks forms, behind this socket, which is ours now; the latest wins."""
        if self._link is not None:
            self._link.close()
        self._link = link
        if self._scope is not None:
            self._scope.cancel("another process checks forms now")
        self._changed.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `form-checks`; never returns unless cancelled. Sockets end with it."""
        task_status.started()
        try:
            while True:
                while self._link is None:
                    with waiting_for("a process that checks forms"):
                        await self._changed.wait()
                link, self._link = self._link, None
                with ControlChannel(link, sends=TO_FORMS, receives=FROM_FORMS) as channel:
                    await self._serve(channel)
                for check in self.queue.handle_gone():
                    self._finish(check.digest)
        finally:
            if self._link is not None:
                self._link.close()

    async def _serve(self, channel: ControlChannel) -> None:
        """Send and receive until the other end is gone, or another one is there."""
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                link = nursery.cancel_scope
                start_service_soon(nursery, self._send, channel, link, name="form-sender")
                await self._receive(channel)
                nursery.cancel_scope.cancel("the process that checks forms is gone")
        self._scope = None

    async def _send(self, channel: ControlChannel, link: trio.CancelScope) -> None:
        """Background task `form-sender`, until the other end is gone."""
        try:
            while True:
                for check in self.queue.next_checks():
                    await channel.send_patiently(check)
                with waiting_for("forms to check"):
                    await self._changed.wait()
        except trio.BrokenResourceError:
            link.cancel("the process that checks forms is gone")

    async def _receive(self, channel: ControlChannel) -> None:
        while True:
            try:
                with waiting_for("checked forms"):
                    answer, _ = await channel.receive()
            except MalformedMessage:
                continue  # logged by the channel; its request has a deadline
            except (trio.EndOfChannel, trio.BrokenResourceError):
                return
            assert isinstance(answer, FormChecked), "the codec lets nothing else through"
            check = self.queue.handle_checked(answer, trio.current_time())
            if check is not None:
                self._finish(check.digest)
            self._changed.ring()

    def _finish(self, digest: bytes) -> None:
        if (ended := self._ended.pop(digest, None)) is not None:
            ended.set()
