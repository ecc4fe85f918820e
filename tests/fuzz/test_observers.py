"""What /proc says of processes and sockets that the test makes itself."""

import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from triolet.fuzz.observers import (
    ESTABLISHED,
    GONE,
    abstract_sockets,
    children_of,
    costs_of_tree,
    marked,
    open_files,
    resident_bytes,
    shared_memory_of,
    start_ticks,
    state_of,
    tcp_socket,
    wait_until,
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its input to end."""
    popen = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"SLEEPER": "here"}
    )
    try:
        yield popen
    finally:
        popen.kill()
        popen.communicate()


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("engine 0", "engine"),
        ("engine, waiting", "spare engine"),
        ("fork server", "fork server"),
    ],
)
def test_a_process_is_called_as_its_title_says(title: str, name: str) -> None:
    program = (
        "from triolet.nurseries.processes.title import set_title;"
        f"set_title({title!r}); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        assert name in costs_of_tree(os.getpid())
        popen.communicate(b"\n")


async def test_the_life_of_a_process(sleeper: subprocess.Popen[bytes]) -> None:
    ticks = start_ticks(sleeper.pid)
    assert ticks > 0
    assert sleeper.pid in children_of(os.getpid())
    await wait_until(lambda: sleeper.pid in marked("SLEEPER=here"), "it is marked", seconds=60)
    assert resident_bytes(sleeper.pid) > 0
    assert any(path.startswith("pipe:") for path in open_files(sleeper.pid))
    sleeper.send_signal(signal.SIGSTOP)
    await wait_until(lambda: state_of(sleeper.pid) == "T", "it is stopped", seconds=60)
    sleeper.kill()
    await wait_until(lambda: state_of(sleeper.pid) == "Z", "it is dead", seconds=60)
    assert start_ticks(sleeper.pid) == ticks
    assert sleeper.pid not in marked("SLEEPER=here")
    sleeper.wait()
    assert state_of(sleeper.pid) == GONE
    assert (start_ticks(sleeper.pid), resident_bytes(sleeper.pid)) == (0, 0)
    assert open_files(sleeper.pid) == []


def test_shared_memory_with_a_name_is_found() -> None:
    path = f"/dev/shm/triolet-chaos-test-{os.getpid()}"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.unlink(path)
        os.ftruncate(fd, mmap.PAGESIZE)
        with mmap.mmap(fd, mmap.PAGESIZE):
            assert any(path in name for name in shared_memory_of([os.getpid()]))
    finally:
        os.close(fd)
    assert shared_memory_of([os.getpid()]) == ()


def test_abstract_sockets_are_found_by_a_part_of_their_name() -> None:
    name = f"chaos-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(f"\0{name}")
        assert abstract_sockets(name) == [f"@{name}"]
    assert abstract_sockets(name) == []


def fill(sock: socket.socket) -> None:
    """Write until the kernel takes no more."""
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while sock.send(bytes(2**20)):
            pass


def test_both_ends_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            mine = client.getsockname()[1]
            accepted, _ = listener.accept()
            with accepted:
                client.sendall(b"unread")
                theirs = tcp_socket(port, mine)
                assert theirs is not None
                assert (theirs.state, theirs.unread) == (ESTABLISHED, 6)
                fill(accepted)
                theirs = tcp_socket(port, mine)
                assert theirs is not None
                assert theirs.unsent > 0
    assert tcp_socket(1, 1) is None
