"""The simulated TCP counts as the kernel does: the same acts, the same answers."""

import socket
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import attrs
import pytest

from triolet.fuzz.simulator.stores import Stores
from triolet.fuzz.simulator.takeover.tcp import SimSockets, SimTcp
from triolet.transports.takeover import tcp
from triolet.transports.takeover.tcp import SOCKET_CALLS, SocketCalls, TcpCountsUnknown

DEADLINE_S = 10.0


@attrs.define
class Ends:
    """Both ends of one connection, by what is done with them."""

    server: Any
    write: Callable[[bytes], object]
    read: Callable[[int], object]
    client_send: Callable[[bytes], object]
    client_read: Callable[[], object]
    client_shut: Callable[[], object]
    calls: SocketCalls = SOCKET_CALLS


@pytest.fixture(params=["kernel", "simulated"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    if request.param == "simulated":
        sockets, connection = SimSockets(), SimTcp("c", Random(1), 2**16)
        near, far = sockets.connect(connection)
        fd = near.detach()
        adopted = sockets.adopt(fd, Stores())

        def client_read() -> None:
            connection.taken = connection.acked = len(connection.written)
            connection.is_fin_taken = connection.is_server_done

        yield Ends(
            adopted,
            lambda data: sockets.write(fd, memoryview(data)),
            lambda size: sockets.read(fd, size),
            connection.send,
            client_read,
            connection.shut,
            sockets.calls(),
        )
        sockets.close()
        far.close()
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        client.setblocking(False)

        def drain() -> None:
            try:
                while client.recv(2**16):
                    pass
            except (BlockingIOError, ConnectionResetError):
                pass

        yield Ends(
            server,
            server.send,
            server.recv,
            client.send,
            drain,
            lambda: client.shutdown(socket.SHUT_WR),
        )


def looked(ends: Ends) -> tuple[int, int, bool] | None:
    try:
        counts = (tcp.bytes_accepted, tcp.bytes_read)
        accepted, read = (count(ends.server, ends.calls) for count in counts)
        return accepted, read, tcp.is_open(ends.server)
    except TcpCountsUnknown:
        return None


def expect(ends: Ends, wanted: tuple[int, int, bool] | None) -> None:
    """What the kernel says of the other end's acts comes with their packets."""
    until_s = time.monotonic() + DEADLINE_S
    while looked(ends) != wanted and time.monotonic() < until_s:
        pass
    assert looked(ends) == wanted


def test_counts_and_states_are_those_of_the_kernel(ends: Ends) -> None:
    expect(ends, (0, 0, True))
    ends.write(b"x" * 10)
    expect(ends, (10, 0, True))
    ends.client_send(b"abcde")
    expect(ends, (10, 0, True))
    ends.read(3)
    ends.client_read()
    expect(ends, (10, 3, True))
    ends.client_shut()
    ends.read(2)
    expect(ends, (10, 5, True))
    ends.write(b"y" * 7)
    ends.server.shutdown(socket.SHUT_WR)
    ends.client_read()
    expect(ends, None)


def test_an_abort_ends_both_counts(ends: Ends) -> None:
    ends.write(b"x")
    tcp.abort(ends.server, ends.calls)
    expect(ends, None)


def test_the_server_may_end_first(ends: Ends) -> None:
    ends.write(b"x" * 10)
    ends.server.shutdown(socket.SHUT_WR)
    ends.client_read()
    expect(ends, (10, 0, False))
