"""Publication: a PUB socket for anyone who subscribes, and a ROUTER that answers for the past.

For readers that are not ours, so without links: PUB drops what a slow subscriber has no room for,
the ROUTER what an asker does not take. No call here waits for a peer.
"""

import errno
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import trio
import zmq

from .endpoint import IPC_PREFIX

Socket = zmq.Socket[bytes]
# Messages sent and not read when the process ends are asked for again, from its successor.
_LINGER_MS = 0
# A question is an identity, an empty frame and a number.
_QUESTION_BYTES_MAX = 1024
_QUESTIONS_MAX = 64


@attrs.frozen
class PublicationUnavailable(Exception):
    """An endpoint could not be bound, now."""

    endpoint: str
    reason: str

    def __str__(self) -> str:
        return f"cannot publish on {self.endpoint}: {self.reason}"


@attrs.define(eq=False)
class Publication:
    """Sockets that are bound; open it with `open_publication`."""

    _pub: Socket
    # Socket for questions about past messages; None if they cannot be asked for.
    _router: Socket | None
    # Messages that a socket had no memory for.
    dropped: int = attrs.field(default=0, init=False)

    @property
    def answers(self) -> bool:
        """Whether there is a socket for questions."""
        return self._router is not None

    def publish(self, frames: Sequence[bytes]) -> None:
        """Send to all who subscribe to the first frame's beginning."""
        self._send(self._pub, frames)

    def answer(self, frames: Sequence[bytes]) -> None:
        """Send to whom the first frame names."""
        assert self._router is not None
        self._send(self._router, frames)

    async def question(self) -> list[bytes]:
        """The next question: its asker's identity and what was sent. Cancelled, it loses nothing.

        ZeroMQ's descriptor tells of changes alone, so the socket is asked before each wait.
        """
        assert self._router is not None
        await trio.lowlevel.checkpoint()
        while True:
            with suppress(zmq.Again):
                return self._router.recv_multipart(zmq.NOBLOCK)
            descriptor = self._router.getsockopt(zmq.FD)
            assert isinstance(descriptor, int)
            await trio.lowlevel.wait_readable(descriptor)

    def _send(self, socket: Socket, frames: Sequence[bytes]) -> None:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise OSError(error.errno, error.strerror) from error
            self.dropped += 1


@asynccontextmanager
async def open_publication(
    endpoint: str, replay_endpoint: str, *, high_water: int, replay_high_water: int
) -> AsyncIterator[Publication]:
    """Bind both sockets; without `replay_endpoint` the first alone.

    `high_water`: messages that one subscriber may be behind; `replay_high_water`: of one answer.
    Raises `PublicationUnavailable`.
    """
    context: zmq.Context[Socket] = zmq.Context(io_threads=1)
    try:
        pub = _bind(context, zmq.PUB, endpoint, high_water)
        router = None
        if replay_endpoint:
            router = _bind(context, zmq.ROUTER, replay_endpoint, replay_high_water)
        yield Publication(pub, router)
    finally:
        with trio.CancelScope(shield=True):  # bounded, as nothing lingers
            end = partial(context.destroy, linger=0)
            await trio.to_thread.run_sync(end, abandon_on_cancel=False)


def _bind(context: zmq.Context[Socket], kind: int, endpoint: str, high_water: int) -> Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, high_water)
    socket.setsockopt(zmq.RCVHWM, _QUESTIONS_MAX)
    socket.setsockopt(zmq.MAXMSGSIZE, _QUESTION_BYTES_MAX)
    if endpoint.startswith(IPC_PREFIX):
        socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        in_use = error.errno == errno.EADDRINUSE
        reason = "it is in use" if in_use else str(error.strerror)
        raise PublicationUnavailable(endpoint, reason) from error
    return socket
