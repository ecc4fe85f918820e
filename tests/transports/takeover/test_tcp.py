"""Counts of accepted connections are what their calls returned; an abort reaches the peer."""

import contextlib
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest

from triolet.transports.takeover.tcp import (
    TcpCountsUnknown,
    abort,
    bytes_accepted,
    bytes_read,
    is_open,
    make_countable,
)

ADDRESSES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def connected(
    family: socket.AddressFamily = socket.AF_INET, buffer_bytes: int = 0
) -> tuple[socket.socket, socket.socket]:
    """A client and the accepted end; with small buffers if so."""
    with socket.socket(family) as listener:
        if buffer_bytes:
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                listener.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)
        listener.bind((ADDRESSES[family], 0))
        listener.listen()
        client = socket.socket(family)
        if buffer_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        client.setblocking(False)
        server.setblocking(False)
        return client, server


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, server = connected()
    with client, server:
        yield client, server


@attrs.define(eq=False)
class Traffic:
    """Random use of a connection, counted by what the server's calls return."""

    client: socket.socket
    server: socket.socket
    chance: random.Random
    written: int = 0
    read: int = 0
    client_open: bool = True
    server_open: bool = True

    def act(self) -> None:
        size = self.chance.choice((1, 100, 3000, 70_000))
        kind = self.chance.random()
        try:
            if kind < 0.3 and self.server_open:
                self.written += self.server.send(bytes(size))
            elif kind < 0.5:
                self.read += len(self.server.recv(size))
            elif kind < 0.75 and self.client_open:
                flags = socket.MSG_OOB if self.chance.random() < 0.1 else 0
                self.client.send(bytes(size), flags)
            elif kind < 0.98:
                self.client.recv(size)
            elif self.chance.random() < 0.2:
                self.close_half()
        except BlockingIOError:
            pass

    def close_half(self) -> None:
        """Of one direction; the other one stays open, as all that is known ends with both."""
        if self.client_open and self.server_open:
            if self.chance.random() < 0.5:
                self.client_open = False
                self.client.shutdown(socket.SHUT_WR)
            else:
                self.server_open = False
                self.server.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("family", ADDRESSES)
def test_the_counts_are_what_its_calls_returned(family: socket.AddressFamily) -> None:
    for seed in range(40):
        client, server = connected(family, buffer_bytes=(4096, 0)[seed % 2])
        make_countable(server)
        with client, server:
            traffic = Traffic(client, server, random.Random(seed))
            for step in range(250):
                traffic.act()
                counts = (bytes_accepted(server), bytes_read(server))
                assert counts == (traffic.written, traffic.read), (seed, step)
                assert is_open(server) == traffic.server_open


# Sends and reads all the time.
BUSY_CLIENT = """
import select, socket, sys
client = socket.socket(fileno=int(sys.argv[1]))
client.setblocking(False)
while True:
    readable, writable, _ = select.select([client], [client], [])
    try:
        if readable:
            client.recv(10_000)
        client.send(bytes(10_000))
    except BlockingIOError:
        pass
"""


@pytest.mark.slow
def test_the_counts_are_right_while_the_peer_acknowledges_and_sends() -> None:
    client, server = connected()
    chance = random.Random(1)
    written = read = 0
    with client, server:
        make_countable(server)
        peer = subprocess.Popen(
            [sys.executable, "-c", BUSY_CLIENT, str(client.fileno())], pass_fds=[client.fileno()]
        )
        try:
            for _ in range(3000):
                select.select([server], [server], [])
                try:
                    written += server.send(bytes(chance.randrange(1, 200_000)))
                    read += len(server.recv(chance.randrange(1, 20_000)))
                except BlockingIOError:
                    pass
                assert (bytes_accepted(server), bytes_read(server)) == (written, read)
        finally:
            peer.kill()
            assert peer.wait() == -signal.SIGKILL
    assert written > 10**6
    assert read > 10**6


def test_an_abort_reaches_the_peer_though_a_duplicate_is_open(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, server = pair
    with server.dup() as duplicate:
        server.send(b"bytes")
        abort(server)
        server.close()
        select.select([client], [], [])
        assert client.recv(10) == b"bytes"  # these were there before
        with pytest.raises(ConnectionResetError):
            client.recv(10)
        assert not is_open(duplicate)
        abort(duplicate)  # harmless
        with pytest.raises(TcpCountsUnknown, match="reset"):
            bytes_accepted(duplicate)


def test_an_abort_drops_what_is_unsent() -> None:
    client, server = connected(buffer_bytes=4096)
    with client, server, server.dup():
        fill(server)
        abort(server)
        with pytest.raises(ConnectionResetError):
            read_all(client)


def fill(connection: socket.socket) -> None:
    """Send until nothing more is taken."""
    with contextlib.suppress(BlockingIOError):
        while connection.send(bytes(10_000)):
            pass


def read_all(connection: socket.socket) -> None:
    """Up to a FIN."""
    while connection.recv(10_000):
        pass


def test_a_reset_connection_has_no_counts(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    assert is_open(server)
    abort(client)
    assert not is_open(server)
    for count in (bytes_accepted, bytes_read):
        with pytest.raises(TcpCountsUnknown, match="it was reset, or closed in both directions"):
            count(server)


def test_one_that_is_closed_in_both_directions_has_no_counts(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, server = pair
    server.shutdown(socket.SHUT_WR)
    assert bytes_accepted(server) == 0
    client.shutdown(socket.SHUT_WR)
    with pytest.raises(TcpCountsUnknown):
        bytes_accepted(server)


def test_other_sockets_are_refused() -> None:
    one, other = socket.socketpair()
    with one, other, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        for wrong in (one, datagrams):
            with pytest.raises(TcpCountsUnknown):
                make_countable(wrong)
        with pytest.raises(OSError, match="cannot be aborted"):
            abort(one)
