"""ZeroMQ sockets of a channel, with every option that matters written out.

An owner thread (`zmq_thread`) holds one that is bound (a hub's) or several that are connected (a
spoke's). All of this runs in that thread; nothing here blocks, and `zmq.ZMQError` is translated
here.

What the options are for: a *mandatory* ROUTER says when a peer is gone instead of dropping; the
high-water marks are fuses at twice what a link may have unacknowledged, so that a full pipe means a
broken peer; local sockets take connections of our own user only; there is no ROUTER_HANDOVER, by
which another peer could take over a living one's identity.

Nearly every message is one frame, and asking libzmq whether another follows costs four times as
much as receiving. So the first byte of a message, which its sender leaves below 128, says it by its
highest bit. A wrong bit spoils only what its sender sends: frames that were not announced are
messages of their own, and no header; after an announcement libzmq is asked.
"""

import errno
import os
from collections.abc import Hashable, Iterator, Sequence

import attrs
import zmq

from ..array import Frame
from ..endpoint import check_endpoint, is_local
from .link_header import LinkSettings

# Time for ordered messages to be written at the end: long enough for a last abort on this host,
# short against every ladder.
LINGER_MS = 100
# Control frames only (LINK_UP, at most one in flight per 50 ms): a few, so that a hub that is away
# for long is not met by thousands when it returns.
_CONTROL_HIGH_WATER = 8
# LINK_UPs of all spokes at once; what does not fit is sent again.
_LINK_UP_HIGH_WATER = 1024
# A peer that shows no life for so long over TCP is disconnected, so that its identity is free.
_HEARTBEAT_INTERVAL_MS = 1000
_HEARTBEAT_TIMEOUT_MS = 3000
# Reconnecting: quick at first, and bounded for a hub that stays away.
_RECONNECT_MS = 20
_RECONNECT_MAX_MS = 1000
_HANDSHAKE_MS = 5000
# Room above the codec's own limit (64 MiB for a whole message); a larger frame ends the connection.
_FRAME_BYTES_MAX = 80 * 2**20
_BACKLOG = 512
# Smaller frames are copied in; a larger one is received as a view of ZeroMQ's memory (the first
# frame of a message is always copied in). Out, all are: pyzmq sends from the sender's own buffer
# only with a daemon thread and a context of the whole process, which would outlive us. Measured:
# 0.5 ms a MiB.
_COPY_BYTES_MAX = 64 * 1024
_MORE_FOLLOWS = 0x80
# Plain numbers: turning the enum's member into one takes as long as a tenth of a receive.
_NO_BLOCK, _EVENTS, _POLLIN = int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)

Socket = zmq.Socket[bytes]
# A message that came: one frame, as nearly always, or a list of all. (Making a list for every frame
# would cost the thread half as much again.)
Received = bytes | list[Frame]


@attrs.frozen
class EndpointInUse(Exception):
    """The endpoint is taken: for a local one, by a process of the same run and epoch."""

    endpoint: str

    def __str__(self) -> str:
        return f"{self.endpoint} is in use"


@attrs.frozen
class SocketSettings:
    """Settings that differ between deployments and tests."""

    # Messages in one peer's pipe, each direction.
    high_water: int = 2 * LinkSettings().unacknowledged_max
    linger_ms: int = LINGER_MS
    # Only tests set another user than our own (None), to see that it is refused.
    allowed_uid: int | None = None


def bind_socket(
    context: zmq.Context[Socket], kind: int, text: str, settings: SocketSettings
) -> tuple[Socket, str]:
    """A hub's socket, and where it is bound: a ROUTER (its way out) or a PULL (its way in).

    By the ROUTER only LINK_UPs come in. Raises `BadEndpoint`, `EndpointInUse`, `OSError`.
    """
    check_endpoint(text)
    socket = _make(context, kind, text, settings)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.RCVHWM, _LINK_UP_HIGH_WATER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    socket.setsockopt(zmq.BACKLOG, _BACKLOG)
    if is_local(text):
        uid = os.getuid() if settings.allowed_uid is None else settings.allowed_uid
        socket.setsockopt(zmq.IPC_FILTER_UID, uid)
    try:
        socket.bind(text)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        if error.errno == errno.EADDRINUSE:
            raise EndpointInUse(text) from error
        raise OSError(error.errno, error.strerror, text) from error
    # libzmq names an abstract socket by its whole padded address; ours needs no asking.
    if is_local(text):
        return socket, text
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def connect_socket(
    context: zmq.Context[Socket], kind: int, text: str, identity: bytes, *, settings: SocketSettings
) -> Socket:
    """A spoke's socket to one hub in one generation: a DEALER (its way in) or a PUSH (out).

    By the DEALER only LINK_UPs go out; a PULL does not see the identity.
    """
    check_endpoint(text)
    socket = _make(context, kind, text, settings)
    if kind == zmq.DEALER:
        socket.setsockopt(zmq.SNDHWM, _CONTROL_HIGH_WATER)
    socket.setsockopt(zmq.ROUTING_ID, identity)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    socket.connect(text)
    return socket


def _make(
    context: zmq.Context[Socket], kind: int, endpoint: str, settings: SocketSettings
) -> Socket:
    """Options that all sockets share."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, settings.linger_ms)
    socket.setsockopt(zmq.SNDHWM, settings.high_water)
    socket.setsockopt(zmq.RCVHWM, settings.high_water)
    socket.setsockopt(zmq.MAXMSGSIZE, _FRAME_BYTES_MAX)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.IMMEDIATE, 0)
    # Over TCP only: between processes of one host the kernel reports a lost peer.
    if not is_local(endpoint):
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_INTERVAL_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TTL, _HEARTBEAT_TIMEOUT_MS)
    return socket


def _send(socket: Socket, frames: Sequence[Frame], identity: bytes | None = None) -> str:
    try:
        try:
            _put(socket, frames, identity)
        except zmq.Again:
            # The peer's progress is noticed now and then, or when asked as here.
            socket.getsockopt(_EVENTS)
            _put(socket, frames, identity)
    except zmq.Again:
        return "its pipe is full"
    except zmq.ZMQError as error:
        if error.errno == errno.EHOSTUNREACH:
            return "it is not connected"
        raise
    return ""


def _put(socket: Socket, frames: Sequence[Frame], identity: bytes | None) -> None:
    # A pipe that takes the first part of a message takes the others: only the first can fail.
    if identity is not None:
        socket.send(identity, zmq.NOBLOCK | zmq.SNDMORE)
    if len(frames) == 1:
        socket.send(frames[0], zmq.NOBLOCK)
    else:
        _send_several(socket, frames)


def _send_several(socket: Socket, frames: Sequence[Frame]) -> None:
    first = bytearray(frames[0])
    first[0] |= _MORE_FOLLOWS
    socket.send(first, zmq.NOBLOCK | zmq.SNDMORE)
    for frame in frames[1:-1]:
        socket.send(frame, zmq.NOBLOCK | zmq.SNDMORE)
    socket.send(frames[-1], zmq.NOBLOCK)


def _receive(socket: Socket, limit: int) -> list[Received]:
    burst: list[Received] = []
    try:
        # A message often comes alone, and asking is cheaper than being refused; but only once.
        if _has_news(socket):
            _take(socket, burst, 1)
            if _has_news(socket):
                _take(socket, burst, limit - 1)
    except zmq.Again:
        pass
    return burst


def _has_news(socket: Socket) -> bool:
    return bool(int(socket.getsockopt(_EVENTS)) & _POLLIN)


def _take(socket: Socket, burst: list[Received], limit: int) -> None:
    # Looked up once: this loop is the thread's whole cost of a message.
    recv, append, no_block, more_follows = socket.recv, burst.append, _NO_BLOCK, _MORE_FOLLOWS
    for _ in range(limit):
        first = recv(no_block)
        if first and first[0] >= more_follows:
            plain = bytes((first[0] - more_follows,)) + first[1:]
            append([plain, *_receive_rest(socket)])
        else:
            append(first)


def _receive_enveloped(socket: Socket, limit: int) -> list[Received]:
    """A ROUTER's: the identity comes first."""
    burst: list[Received] = []
    if not _has_news(socket):
        return burst
    try:
        for _ in range(limit):
            identity = socket.recv(zmq.NOBLOCK)
            burst.append([identity, *_receive_rest(socket)])
    except zmq.Again:
        pass
    return burst


def _receive_rest(socket: Socket) -> Iterator[Frame]:
    while socket.getsockopt(zmq.RCVMORE):
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        yield frame.bytes if len(frame) < _COPY_BYTES_MAX else frame.buffer


@attrs.define(eq=False)
class HeldSockets:
    """Sockets of one owner thread; every method is called in that thread.

    With an endpoint, one bound socket: a PULL, or a ROUTER, to which a peer's key is its identity.
    Without one, a connected socket for each key: DEALERs or PUSHes.
    """

    context: zmq.Context[Socket]
    kind: int
    settings: SocketSettings
    endpoint: str = ""
    # By key; the bound one is None's.
    _sockets: dict[Hashable, Socket] = attrs.field(factory=dict, init=False)

    def open(self) -> str:
        """Bind, if there is an endpoint; returns where, or "". Raises what `bind_socket` does."""
        if not self.endpoint:
            return ""
        self._sockets[None], bound = bind_socket(
            self.context, self.kind, self.endpoint, self.settings
        )
        return bound

    def connect(self, key: Hashable, endpoint: str, identity: bytes) -> Socket:
        """Make one more socket, known as `key`."""
        socket = connect_socket(self.context, self.kind, endpoint, identity, settings=self.settings)
        self._sockets[key] = socket
        return socket

    def disconnect(self, key: Hashable) -> Socket | None:
        """Take it out; the caller closes it. None if there is no such socket."""
        return self._sockets.pop(key, None)

    def sockets(self) -> dict[Hashable, Socket]:
        return self._sockets

    def send(self, key: Hashable, frames: Sequence[Frame]) -> str:
        """Send without waiting: "" or, if the peer cannot be reached, the reason. The first frame
        has a first byte, below 128."""
        if self.endpoint:
            assert isinstance(key, bytes)
            return _send(self._sockets[None], frames, key)
        socket = self._sockets.get(key)
        return "it is not connected" if socket is None else _send(socket, frames)

    def receive(self, socket: Socket, limit: int) -> list[Received]:
        """The messages that are there, oldest first, at most `limit`.

        With fewer there was no other, and the socket's descriptor reports the next one. A ROUTER's
        messages begin with the sender's identity.
        """
        receive = _receive_enveloped if self.kind == zmq.ROUTER else _receive
        return receive(socket, limit)

    def close(self) -> None:
        """Close all, leaving what is unsent to the bounded linger."""
        for socket in self._sockets.values():
            socket.close()
