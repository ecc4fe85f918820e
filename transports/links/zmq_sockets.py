"""ZeroMQ sockets of a channel, with every option that matters written out.

An owner thread (`zmq_thread`) holds one that is bound (a hub's) or several that are connected (a
spoke's). All of this runs in that thread; nothing here blocks, and `zmq.ZMQError` is translated
here.

What the options are for: a *mandatory* ROUTER says when a peer is gone instead of dropping; the
high-water marks are fuses at twice what a link may have unacknowledged, so that a full pipe means a
broken peer; local sockets take connections of our own user only; there is no ROUTER_HANDOVER, by
which another peer could take over a living one's identity. Over a network connections are tried
again soon, and given up soon when nothing comes: what was queued meanwhile is lost anyway, and
`link` finds that out.

Nearly every message is one frame, and asking libzmq whether another follows costs four times as
much as receiving. So the first byte of a message, which its sender leaves below 128, says it by its
highest bit. A wrong bit spoils only what its sender sends: frames that were not announced are
messages of their own, and no header; after an announcement libzmq is asked.
"""

import errno
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence

import attrs
import zmq

from ..array import Frame
from ..endpoint import check_endpoint, is_ipv6, is_local
from .curve import answer_door, bind_door, guard_bound, show_keys, shown_key
from .link_header import LinkSettings
from .link_keys import Guests, LinkKeys

# Time for ordered messages to be written at the end: long enough for a last abort on this host,
# short against every ladder.
LINGER_MS = 100
# Control frames only (LINK_UP, at most one in flight per 50 ms): a few, so that a hub that is away
# for long is not met by thousands when it returns.
_CONTROL_HIGH_WATER = 8
# LINK_UPs of all spokes at once; what does not fit is sent again.
_LINK_UP_HIGH_WATER = 1024
# A peer that shows no life for so long over TCP is disconnected, so that its identity is free.
# Measured: 0.7 to 1.0 s after a cut that nobody says.
_HEARTBEAT_INTERVAL_MS = 250
_HEARTBEAT_TIMEOUT_MS = 750
# Reconnecting: quick at first, and bounded for a hub that stays away. Over TCP the kernel alone
# would repeat a SYN after 1, 3, 7 s: up again 0.4 s after a cut healed instead of 1.7.
_RECONNECT_MS = 20
_RECONNECT_MAX_MS = 1000
_RECONNECT_MAX_TCP_MS = 200
_CONNECT_TCP_MS = 500
# Over TCP who was refused comes again after it (`curve`); an encrypted handshake took 0.4 s on a
# loaded machine.
_HANDSHAKE_MS = 5000
_HANDSHAKE_TCP_MS = 2000
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


@attrs.define
class Enveloped:
    """A message that came to a ROUTER; a value, never changed."""

    identity: bytes
    frames: list[Frame]
    # The public key by which its sender came; b"" if the socket has no keys.
    shown_key: bytes = b""


# A message that came: one frame, as nearly always, or a list of all. (Making a list for every frame
# would cost the thread half as much again.)
Received = bytes | list[Frame] | Enveloped


@attrs.frozen
class BoundEnd:
    """Where a hub's socket is bound."""

    endpoint: str
    # Of the hub; None: not encrypted, and everybody is let in who reaches it.
    keys: LinkKeys | None = None
    # Nothing is bound beside it: a ROUTER by which everything comes and goes.
    is_only: bool = False


@attrs.frozen
class Addressee:
    """An outbox's key at ROUTERs: which of them, and a peer's identity there."""

    end: int
    identity: bytes


@attrs.frozen
class Target:
    """Where a spoke's socket connects, and as whom."""

    endpoint: str
    identity: bytes
    # The hub's public key; b"": not encrypted.
    server_key: bytes = b""
    # There is no PUSH beside it: a DEALER by which everything comes and goes.
    is_only: bool = False


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
    context: zmq.Context[Socket], kind: int, end: BoundEnd, settings: SocketSettings
) -> tuple[Socket, str]:
    """A hub's socket, and where it is bound: a ROUTER (its way out) or a PULL (its way in).

    By a ROUTER with a PULL beside it only LINK_UPs come in. Raises `BadEndpoint`, `EndpointInUse`,
    `OSError`.
    """
    text = end.endpoint
    check_endpoint(text)
    socket = _make(context, kind, text, settings)
    if kind == zmq.ROUTER:
        if not end.is_only:
            socket.setsockopt(zmq.RCVHWM, _LINK_UP_HIGH_WATER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    socket.setsockopt(zmq.BACKLOG, _BACKLOG)
    if is_local(text):
        uid = os.getuid() if settings.allowed_uid is None else settings.allowed_uid
        socket.setsockopt(zmq.IPC_FILTER_UID, uid)
    if end.keys is not None:
        guard_bound(socket, end.keys)
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
    context: zmq.Context[Socket],
    kind: int,
    target: Target,
    settings: SocketSettings,
    *,
    keys: LinkKeys | None = None,
) -> Socket:
    """A spoke's socket to one hub in one generation: a DEALER (its way in) or a PUSH (out).

    By a DEALER with a PUSH beside it only LINK_UPs go out; a PULL does not see the identity.
    `keys` are shown to a hub that has some.
    """
    check_endpoint(target.endpoint)
    socket = _make(context, kind, target.endpoint, settings)
    if kind == zmq.DEALER and not target.is_only:
        socket.setsockopt(zmq.SNDHWM, _CONTROL_HIGH_WATER)
    socket.setsockopt(zmq.ROUTING_ID, target.identity)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    if is_local(target.endpoint):
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    else:
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_TCP_MS)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_TCP_MS)
    if target.server_key:
        assert keys is not None
        show_keys(socket, keys, target.server_key)
    socket.connect(target.endpoint)
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
    socket.setsockopt(zmq.IMMEDIATE, 0)
    if is_local(endpoint):
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        return socket
    # Over TCP only: between processes of one host the kernel reports a lost peer.
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_INTERVAL_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, _HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_TCP_MS)
    socket.setsockopt(zmq.IPV6, is_ipv6(endpoint))
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
            append([_without_mark(first), *_receive_rest(socket)])
        else:
            append(first)


def _without_mark(first: bytes) -> bytes:
    return bytes((first[0] & ~_MORE_FOLLOWS,)) + first[1:]


def _receive_enveloped(socket: Socket, limit: int) -> list[Received]:
    """A ROUTER's: the identity comes first, and libzmq is asked for every frame's end."""
    burst: list[Received] = []
    if not _has_news(socket):
        return burst
    try:
        for _ in range(limit):
            identity = socket.recv(zmq.NOBLOCK)
            frame = socket.recv(zmq.NOBLOCK, copy=False)
            first = frame.bytes
            if first and first[0] >= _MORE_FOLLOWS:
                first = _without_mark(first)
            frames = [first, *_receive_rest(socket)]
            burst.append(Enveloped(identity, frames, shown_key(frame)))
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

    With ends, bound sockets: PULLs, or ROUTERs, to which a peer's key is an `Addressee`. Without,
    a connected socket for each key: DEALERs or PUSHes.
    """

    context: zmq.Context[Socket]
    kind: int
    settings: SocketSettings
    ends: Mapping[int, BoundEnd] = attrs.field(factory=dict)
    # Those of the ends with keys, of all threads of the context: answered for here if given.
    guests: Guests | None = attrs.field(default=None, kw_only=True)
    # Shown to hubs that have some.
    keys: LinkKeys | None = attrs.field(default=None, kw_only=True)
    # By key; a bound one's is its number in `ends`.
    _sockets: dict[Hashable, Socket] = attrs.field(factory=dict, init=False)
    # The one of them at which libzmq asks about guests.
    _door: Socket | None = attrs.field(default=None, init=False)

    def open(self) -> dict[int, str]:
        """Bind all ends; returns where. Raises what `bind_socket` does."""
        if self.guests is not None and any(end.keys for end in self.ends.values()):
            self._sockets["door"] = self._door = bind_door(self.context)
        bound = {}
        for number, end in self.ends.items():
            self._sockets[number], bound[number] = bind_socket(
                self.context, self.kind, end, self.settings
            )
        return bound

    def connect(self, key: Hashable, target: Target) -> Socket:
        """Make one more socket, known as `key`."""
        socket = connect_socket(self.context, self.kind, target, self.settings, keys=self.keys)
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
        if type(key) is Addressee:
            return _send(self._sockets[key.end], frames, key.identity)
        socket = self._sockets.get(key)
        return "it is not connected" if socket is None else _send(socket, frames)

    def receive(self, socket: Socket, limit: int) -> list[Received]:
        """The messages that are there, oldest first, at most `limit`.

        With fewer there was no other, and the socket's descriptor reports the next one. A ROUTER's
        messages are `Enveloped`.
        """
        if self.kind != zmq.ROUTER:
            return _receive(socket, limit)
        if socket is not self._door:
            return _receive_enveloped(socket, limit)
        assert self.guests is not None
        answer_door(socket, self.guests.let_in)
        return []

    def close(self) -> None:
        """Close all, leaving what is unsent to the bounded linger."""
        for socket in self._sockets.values():
            socket.close()
