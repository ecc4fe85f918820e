"""Sockets of another process are duplicated and ended, and single threads of it stopped."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from triolet.fuzz.observers import state_of
from triolet.fuzz.other_process import duplicate, sockets_between, stopped_thread, threads_of

# Answers lines while a thread of it waits for one, and says when its socket ends.
OTHER = """
import socket, sys, threading
pair = socket.socket(fileno=int(sys.argv[1]))
threading.Thread(target=lambda: print(pair.recv(9), flush=True)).start()
print("begun", flush=True)
for line in sys.stdin:
    print(line.strip(), flush=True)
"""
GONE_PID = 2**22 + 1


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    ours, theirs = socket.socketpair()
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-c", OTHER, str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        ) as popen,
    ):
        theirs.close()
        assert line_of(popen) == b"begun\n"
        yield popen, ours
        popen.kill()


def line_of(popen: subprocess.Popen[bytes]) -> bytes:
    assert popen.stdout is not None
    return popen.stdout.readline()


def say(popen: subprocess.Popen[bytes], line: bytes) -> None:
    assert popen.stdin is not None
    popen.stdin.write(line)
    popen.stdin.flush()


def test_a_connection_ends_though_its_owner_has_not_ended_it(
    other: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    popen, ours = other
    with sockets_between(popen.pid, os.getpid()) as found:
        (theirs,) = found
        theirs.shutdown(socket.SHUT_RDWR)
    assert line_of(popen) == b"b''\n"
    assert ours.recv(1) == b""


def test_sockets_with_others_are_none_of_its(
    other: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    with sockets_between(other[0].pid, other[0].pid) as found:
        assert found == []


def test_one_thread_stands_still_and_the_others_go_on(
    other: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    popen, ours = other
    (thread,) = set(threads_of(popen.pid, "")) - {popen.pid}
    with stopped_thread(thread):
        assert state_of(thread) == "t"
        ours.send(b"late")
        say(popen, b"at once\n")
        assert line_of(popen) == b"at once\n"
        assert state_of(thread) == "t"
    assert line_of(popen) == b"b'late'\n"


def test_a_process_may_be_killed_while_a_thread_of_it_is_stopped(
    other: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    popen, _ = other
    (thread,) = set(threads_of(popen.pid, "")) - {popen.pid}
    with stopped_thread(thread):
        popen.kill()
    assert popen.wait(10) == -9


def test_what_is_gone_cannot_be_touched() -> None:
    with pytest.raises(OSError):
        duplicate(GONE_PID, 0)
    with pytest.raises(OSError), sockets_between(GONE_PID, 1):
        pass
    with pytest.raises(OSError), stopped_thread(GONE_PID):
        pass
