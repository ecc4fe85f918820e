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
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import attrs
import trio

from ....nurseries.tasks.changes import Changes
from ....transports.takeover.tcp import SocketCalls

# Up to `tcpi_bytes_received`, as `transports.takeover.tcp` has it.
_INFO = struct.Struct("=B119xQQ")
_INT = struct.Struct("=i")
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2, _CLOSE, _CLOSE_WAIT, _LAST_ACK = 1, 4, 5, 7, 8, 9
# No descriptor of this process is as large.
_FIRST_FD = 10**6


class Process(Protocol):
    """Who makes a system call; what a dead one makes does nothing."""

    is_dead: bool

    def make(self, what: str, effect: Callable[[], None]) -> None:
        """Make this effect, unless it dies before."""


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
    # Open ones, in all processes.
    descriptors: int = 0
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
class SimKernel:
    """Descriptors of connections, of all processes; and the system calls on them."""

    # {descriptor: its connection, and who has it}
    _open: dict[int, tuple[SimTcp, Process]] = attrs.field(factory=dict)
    _next: int = _FIRST_FD

    def open(self, tcp: SimTcp, process: Process) -> int:
        """A descriptor of this connection for this process."""
        self._next += 1
        self._open[self._next] = (tcp, process)
        tcp.descriptors += 1
        return self._next

    def pass_on(self, fd: int, process: Process) -> int:
        """A duplicate for another process."""
        return self.open(self._open[fd][0], process)

    def close(self, fd: int) -> None:
        """The last one of a connection ends it. Of a dead process none is left to be closed."""
        tcp, _ = self._open.pop(fd, (None, None))
        if tcp is not None:
            tcp.descriptors -= 1
            if not tcp.descriptors:
                tcp.handle_closed()
            tcp.change()  # those who wait for it learn it

    def handle_death(self, process: Process) -> None:
        """All of its descriptors are closed."""
        for fd in [fd for fd, (_, owner) in self._open.items() if owner is process]:
            self.close(fd)

    def find(self, fd: int) -> tuple[SimTcp, Process]:
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
            connect=self.connect,
            wait_readable=self.wait_readable,
            duplicate=self.duplicate,
            descriptors_max=lambda: 2**40,
        )

    def duplicate(self, fd: int) -> Any:
        """A plain socket, of the same process."""
        return SimSocket(self, self.open(*self.find(fd)))

    def write(self, fd: int, data: memoryview) -> int:
        """See `os.write`; what has no room waits."""
        tcp, process = self.find(fd)
        if tcp.is_reset or tcp.is_server_done:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        size = min(len(data), tcp.room)
        if size <= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        def effect() -> None:
            tcp.written.extend(data[:size])
            tcp.change()

        process.make(f"write {size} to {tcp.name}", effect)
        return size

    def read(self, fd: int, size: int) -> bytes:
        """See `os.read`."""
        tcp, process = self.find(fd)
        data = bytes(tcp.sent[tcp.read : tcp.read + size])
        if tcp.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if not data and not tcp.is_client_done:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        def effect() -> None:
            tcp.read += len(data)

        process.make(f"read {len(data)} of {tcp.name}", effect)
        return data

    def readv(self, fd: int, rooms: list[memoryview]) -> int:
        """See `os.readv`: the kernel copies and counts in one."""
        (room,) = rooms
        tcp, process = self.find(fd)
        before = tcp.read
        data = self.read(fd, len(room))
        if tcp.read > before and not process.is_dead:
            room[: len(data)] = data
        return len(data)

    def ioctl(self, connection: "SimSocket", request: int, _: bytes) -> bytes:
        """See `fcntl.ioctl`."""
        return _INT.pack(self.find(connection.fileno())[0].waiting(request))

    def connect(self, fd: int, address: bytes, size: int) -> int:
        """To no address (`AF_UNSPEC`): an abort."""
        assert address[:size] == struct.pack("=H14x", socket.AF_UNSPEC)
        tcp, process = self.find(fd)
        process.make(f"abort {tcp.name}", tcp.reset)
        return 0

    async def wait_readable(self, fd: int) -> None:
        """See `trio.lowlevel.wait_readable`."""
        await trio.lowlevel.checkpoint()
        while (found := self._open.get(fd)) is not None:
            tcp = found[0]
            if tcp.is_reset or tcp.is_client_done or tcp.read < len(tcp.sent):
                return
            await tcp.wait_changed()
        raise trio.ClosedResourceError("another task closed it")


class SimSocket(trio.socket.SocketType):
    """A descriptor as trio's socket, and as a plain one."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP
    did_shutdown_SHUT_WR = False  # noqa: N815  # trio's name

    def __init__(self, kernel: SimKernel, fileno: int) -> None:
        super().__init__()
        self._kernel, self._fd = kernel, fileno

    def fileno(self) -> int:
        return self._fd

    def getpeername(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def setsockopt(self, *_: Any) -> None:
        """No option changes anything here."""

    def getsockopt(self, level: int, option: int, size: int | None = None) -> Any:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return self._kernel.find(self._fd)[0].info()

    async def send(self, data: memoryview, flags: int = 0) -> int:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._kernel.write(self._fd, data)
            except BlockingIOError:
                await self._kernel.find(self._fd)[0].wait_changed()

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_WR
        tcp, process = self._kernel.find(self._fd)
        if tcp.is_reset:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        self.did_shutdown_SHUT_WR = True
        process.make(f"shut {tcp.name}", tcp.finish)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        self._kernel.close(fd)
