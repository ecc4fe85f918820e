"""Descriptors beside messages: all arrive or none stays open; sealed memory or nothing."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from triolet.transports.codec import MalformedMessage
from triolet.transports.control.passed_fds import (
    ANCILLARY_BYTES,
    PASSED_FDS_MAX,
    RECEIVE_FLAGS,
    close_fds,
    fds_from_ancillary,
    fds_to_ancillary,
    read_sealed,
    seal_in_memfd,
)


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@contextmanager
def no_room_for_descriptors() -> Iterator[None]:
    """This process has as many open as it may have."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right


def _receive(sock: socket.socket, data_bytes: int = 10) -> list[int]:
    _, ancillary, flags, _ = sock.recvmsg(data_bytes, ANCILLARY_BYTES, RECEIVE_FLAGS)
    return fds_from_ancillary(ancillary, flags)


def test_descriptors_arrive_in_order_and_are_not_inherited(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pipe = os.pipe()
    pair[0].sendmsg([b"x"], fds_to_ancillary(pipe))
    received = _receive(pair[1])
    os.write(received[1], b"through")
    assert os.read(pipe[0], 10) == b"through"
    assert not any(os.get_inheritable(fd) for fd in received)
    close_fds([*pipe, *received])


def test_no_descriptors_are_no_ancillary_data(pair: tuple[socket.socket, socket.socket]) -> None:
    assert fds_to_ancillary([]) == []
    pair[0].sendmsg([b"x"], [])
    assert _receive(pair[1]) == []


@pytest.mark.parametrize(
    ("count", "data", "what"), [(1, b"x" * 11, "data"), (PASSED_FDS_MAX + 3, b"x", "descriptors")]
)
def test_what_was_cut_is_malformed_and_closed(
    pair: tuple[socket.socket, socket.socket], count: int, data: bytes, what: str
) -> None:
    before = open_fds()
    pair[0].sendmsg([data], fds_to_ancillary([0] * count))
    with pytest.raises(MalformedMessage, match=what):
        _receive(pair[1])
    assert open_fds() == before


def test_closing_goes_on_past_a_closed_one() -> None:
    left, right = os.pipe()
    os.close(left)
    close_fds([left, right])
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(right)


def test_sealed_memory_reads_back_and_cannot_change() -> None:
    fd = seal_in_memfd([b"one", memoryview(b"two"), b""], "test")
    assert read_sealed(fd, 6) == b"onetwo"
    assert read_sealed(fd, 6) == b"onetwo"
    with pytest.raises(PermissionError):
        os.write(fd, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(MalformedMessage, match="limit 5"):
        read_sealed(fd, 5)
    os.close(fd)


def test_nothing_else_passes_for_sealed_memory() -> None:
    pipe = os.pipe()
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    for fd, reason in ((pipe[0], "no memfd"), (loose, "not sealed")):
        with pytest.raises(MalformedMessage, match=reason):
            read_sealed(fd, 100)
    close_fds([*pipe, loose])


def test_sealing_what_cannot_be_written_leaves_nothing_open() -> None:
    before = open_fds()
    with pytest.raises(TypeError):
        seal_in_memfd(["text"], "test")  # type: ignore[list-item]
    assert open_fds() == before
