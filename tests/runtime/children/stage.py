"""Where an acting program runs: in a process of its own, or as a task of who tests its parent."""

import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from triolet.nurseries.processes.child import ChildFds
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import ChildHandshake, Hello, perform_child_handshake


@attrs.define(eq=False)
class Stage:
    """What a program has of its process: its end of the control socket, its pid, a cue, an exit.

    The cue is SIGUSR1.
    """

    socket: socket.socket
    wait_cue: Callable[[], Awaitable[object]]
    pid: int = attrs.field(factory=os.getpid)
    exit: Callable[[int], object] = os._exit
    # Descriptors that are closed when it ends.
    fds: list[int] = attrs.field(factory=list)
    control: ControlChannel = attrs.field(init=False)

    async def enter(
        self, role: str, sends: Sequence[type], receives: Sequence[type]
    ) -> ChildHandshake:
        """Say HELLO; returns what came with INIT."""
        self.control = ControlChannel(self.socket, sends=sends, receives=receives)
        handshake = await perform_child_handshake(self, role)
        self.fds += handshake.fds
        return handshake

    async def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """As this process."""
        if isinstance(message, Hello):
            message = Hello(message.role, self.pid)
        await self.control.send(message, fds)

    async def receive_any(self) -> tuple[object, list[int]]:
        """For the handshake."""
        return await self.control.receive_any()


async def play(program: Callable[[Stage], Awaitable[None]], fds: ChildFds) -> None:
    """Run a program in a process of its own."""
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        await program(Stage(fds.control, lambda: anext(signals)))
