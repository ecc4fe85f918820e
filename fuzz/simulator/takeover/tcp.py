"""Simulated TCP: connections of one server as its kernel has them, and as its clients see them.

Counts are those of Linux (`transports.takeover.tcp` reads them): `bytes_acked` and
`bytes_received` with the FIN of their direction, and what waits in either buffer. A write takes
what has room; acknowledgements come late, also between two looks; a connection lives as long as
one descriptor of it, in any process, and ends by FIN, or by RST if something was not read.
"""

import errno
import os
import socket
import struct
import termios
from random import Random
from typing import Any

import attrs
import trio

from ....nurseries.tasks.changes import Changes
from ....transports.takeover.tcp import SocketCalls
from ..stores import Stores

# Up to `tcpi_bytes_received`, as `transports.takeover.tcp` has it.
_INFO = struct.Struct("=B119xQQ")
_INT = struct.Struct("=i")
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2, _CLOSE, _CLOSE_WAIT, _LAST_ACK = 1, 4, 5, 7, 8, 9


@attrs.define(eq=False)
class SimTcp:
    """One connection: `written` by the server, and `sent` by the client, from its first byte on."""

    name: str
    chance: Random
    # The server's end holds so much that was not acknowledged.
    buffer_bytes: int
    # Who reads it dies.
    is_fatal: bool = False
    # It has a slot; else it ends with its process.
    is_held: bool = True
    written: bytearray = attrs.field(factory=bytearray)
    # So much of it the client has taken; its acknowledgement has come for the other.
    taken: int = 0
    acked: int = 0
    sent: bytearray = attrs.field(factory=bytearray)
    # So much of it processes have read.
    read: int = 0
    is_client_done: bool = False
    is_server_done: bool = False
    is_fin_taken: bool = False
    is_reset: bool = False
    _changed: Changes = attrs.field(factory=Changes)

    def change(self) -> None:
        """Wake all who wait for something of it."""
        self._changed.notify()

    async def wait_changed(self) -> None:
        """Until the next change."""
        await self._changed.wait()

    # ---- the client's end

    def send(self, data: bytes) -> None:
        """Everything arrives at once: what is not read waits at the server."""
        if not self.is_reset:
            self.sent += data
            self.change()

    def shut(self) -> None:
        """The client's FIN."""
        self.is_client_done = True
        self.change()

    async def receive(self, most: int) -> bytes:
        """Some bytes; b"" at the end. Raises `ConnectionResetError`."""
        while True:
            if self.is_reset:
                raise ConnectionResetError
            if left := len(self.written) - self.taken:
                size = self.chance.randint(1, min(left, most))
                data = bytes(self.written[self.taken : self.taken + size])
                self.taken += size
                if self.chance.random() < 0.5:
                    self.acked = self.taken
                self.change()
                return data
            if self.acked < self.taken:
                self.acked = self.taken
                self.change()
            if self.is_server_done:
                self.is_fin_taken = True
                return b""
            await self.wait_changed()

    # ---- the server's end

    @property
    def room(self) -> int:
        """What a write may put in."""
        return self.buffer_bytes - (len(self.written) - self.acked)

    def info(self) -> bytes:
        """`struct tcp_info`."""
        acked = self.acked + self.is_fin_taken
        return _INFO.pack(self._state(), acked, len(self.sent) + self.is_client_done)

    def _state(self) -> int:
        is_over = self.is_fin_taken and self.is_client_done
        if self.is_reset or is_over:
            return _CLOSE
        if self.is_server_done:
            if self.is_client_done:
                return _LAST_ACK
            return _FIN_WAIT2 if self.is_fin_taken else _FIN_WAIT1
        return _CLOSE_WAIT if self.is_client_done else _ESTABLISHED

    def waiting(self, request: int) -> int:
        """What `SIOCOUTQ` or `FIONREAD` says; an acknowledgement may come right before it."""
        if request == termios.FIONREAD:
            return len(self.sent) - self.read
        assert request == termios.TIOCOUTQ
        if self.acked < self.taken and self.chance.random() < 0.5:
            self.acked = self.taken
        return len(self.written) - self.acked + (self.is_server_done and not self.is_fin_taken)

    def reset(self) -> None:
        """What is unsent is lost."""
        self.is_reset = True
        self.change()

    def finish(self) -> None:
        """The server's FIN."""
        self.is_server_done = True
        self.change()

    def handle_closed(self) -> None:
        """Its last descriptor is closed."""
        if self.read < len(self.sent):
            self.reset()
        elif not self.is_reset:
            self.finish()


@attrs.define(eq=False)
class SimSockets:
    """Descriptors of connections, of all processes; and the system calls on them.

    Each is one of a real pair of sockets, so that it can be passed, and the kernel counts them: the
    other end of the pair sees when none is left.
    """

    # {what the kernel calls the socket of the pair: its connection}
    _connections: dict[int, SimTcp] = attrs.field(factory=dict, init=False)
    # By descriptor.
    _open: dict[int, "SimSocket"] = attrs.field(factory=dict, init=False)

    def connect(self, tcp: SimTcp) -> tuple[socket.socket, socket.socket]:
        """The server's first descriptor of a new connection, and what ends with the last one."""
        near, far = socket.socketpair()
        self._connections[os.fstat(near.fileno()).st_ino] = tcp
        return near, far

    def tcp_of(self, fd: int) -> SimTcp:
        """The connection behind a descriptor, whoever has opened it."""
        return self._connections[os.fstat(fd).st_ino]

    def adopt(self, fd: int, owner: Stores) -> "SimSocket":
        """A descriptor that has come to this process."""
        found = self._open[fd] = SimSocket(self, self.tcp_of(fd), owner, fd)
        return found

    def forget(self, fd: int) -> None:
        """It is closed."""
        del self._open[fd]

    def handle_death(self, owner: Stores) -> None:
        """All descriptors of a process are closed."""
        for each in [each for each in self._open.values() if each.owner is owner]:
            each.close()

    def close(self) -> None:
        """The simulation is over."""
        for each in list(self._open.values()):
            each.close()

    def find(self, fd: int) -> "SimSocket":
        """Raises `OSError` for none."""
        found = self._open.get(fd)
        if found is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found

    # ---- system calls

    def calls(self) -> SocketCalls:
        """What the code on trial calls."""
        return SocketCalls(
            read=self.read,
            readv=self.readv,
            write=self.write,
            ioctl=self.ioctl,
            connect=self.abort,
            wait_readable=self.wait_readable,
            duplicate=self.duplicate,
            descriptors_max=lambda: 2**40,
        )

    def duplicate(self, fd: int) -> Any:
        """A socket of the root, which never dies."""
        return self.adopt(os.dup(fd), Stores())

    def write(self, fd: int, data: memoryview) -> int:
        """See `os.write`; what has no room waits."""
        found = self.find(fd)
        tcp = found.tcp
        if tcp.is_reset or tcp.is_server_done:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        size = min(len(data), tcp.room)
        if size <= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        def effect() -> None:
            tcp.written.extend(data[:size])
            tcp.change()

        found.owner.store(effect)
        return size

    def read(self, fd: int, size: int) -> bytes:
        """See `os.read`."""
        found = self.find(fd)
        tcp = found.tcp
        data = bytes(tcp.sent[tcp.read : tcp.read + size])
        if tcp.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if not data and not tcp.is_client_done:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        def effect() -> None:
            tcp.read += len(data)

        found.owner.store(effect)
        return data

    def readv(self, fd: int, rooms: list[memoryview]) -> int:
        """See `os.readv`: the kernel copies and counts in one."""
        (room,) = rooms
        found = self.find(fd)
        before = found.tcp.read
        data = self.read(fd, len(room))
        if found.tcp.read > before and not found.owner.is_over:
            room[: len(data)] = data
        return len(data)

    def ioctl(self, connection: "SimSocket", request: int, _: bytes) -> bytes:
        """See `fcntl.ioctl`."""
        return _INT.pack(self.find(connection.fileno()).tcp.waiting(request))

    def abort(self, fd: int, address: bytes, size: int) -> int:
        """See `connect`, to no address (`AF_UNSPEC`)."""
        assert address[:size] == struct.pack("=H14x", socket.AF_UNSPEC)
        found = self.find(fd)
        found.owner.store(found.tcp.reset)
        return 0

    async def wait_readable(self, fd: int) -> None:
        """See `trio.lowlevel.wait_readable`."""
        await trio.lowlevel.checkpoint()
        found = self._open.get(fd)
        while found is not None and found.fileno() == fd:
            tcp = found.tcp
            if tcp.is_reset or tcp.is_client_done or tcp.read < len(tcp.sent):
                return
            await tcp.wait_changed()
        raise trio.ClosedResourceError("another task closed it")


class SimSocket(trio.socket.SocketType):
    """A descriptor as trio's socket, and as a plain one; system calls are its owner's."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP
    did_shutdown_SHUT_WR = False  # noqa: N815  # trio's name

    def __init__(self, sockets: SimSockets, tcp: SimTcp, owner: Stores, fd: int) -> None:
        super().__init__()
        self.tcp, self.owner = tcp, owner
        self._sockets, self._fd = sockets, fd

    def fileno(self) -> int:
        return self._fd

    def getpeername(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def setsockopt(self, *_: Any) -> None:
        """No option changes anything here."""

    def getsockopt(self, level: int, option: int, size: int | None = None) -> Any:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return self._sockets.find(self._fd).tcp.info()

    async def send(self, data: memoryview, flags: int = 0) -> int:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._sockets.write(self._fd, data)
            except BlockingIOError:
                await self.tcp.wait_changed()

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_WR
        tcp = self._sockets.find(self._fd).tcp
        if tcp.is_reset:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        self.did_shutdown_SHUT_WR = True
        self.owner.store(tcp.finish)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._sockets.forget(fd)
            os.close(fd)
            self.tcp.change()  # those who wait for it learn it
