"""Links and control channels of other processes are cut and stalled, or the fault is void."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio
import zmq

from triolet.fuzz.chaos import faults
from triolet.fuzz.chaos.fault_plan import LINKS, NETWORK
from triolet.fuzz.chaos.faults import Void
from triolet.fuzz.chaos.report.report import family_of
from triolet.fuzz.chaos.surroundings import links

from ..test_faults import DEADLINE_S

# Sends back what it gets, by ZeroMQ.
ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
while True:
    socket.send(socket.recv())
"""
WAIT_MS, ATTEMPTS = 1000, 30
READS = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"


@contextlib.contextmanager
def open_echo() -> Iterator[tuple[subprocess.Popen[bytes], "zmq.Socket[bytes]"]]:
    context = zmq.Context()
    ours = context.socket(zmq.DEALER)
    name = f"ipc://@triolet-test-{os.getpid()}"
    ours.bind(name)
    with subprocess.Popen([sys.executable, "-c", ECHO, name]) as popen:
        try:
            assert answer(ours, b"hello") == b"hello"
            yield popen, ours
        finally:
            popen.kill()
            context.destroy(linger=0)


def answer(ours: "zmq.Socket[bytes]", text: bytes) -> bytes:
    """What was on its way when a link is cut is lost: so it is said again."""
    for _ in range(ATTEMPTS):
        if ours.poll(WAIT_MS, zmq.POLLOUT):
            ours.send(text)
        if ours.poll(WAIT_MS):
            return ours.recv()
    return b""


async def test_a_link_that_is_cut_is_another_one_afterwards() -> None:
    with open_echo() as (popen, ours), trio.fail_after(DEADLINE_S):
        proof = await faults.cut_links(popen.pid, os.getpid())
        assert proof.startswith("1 connections")
        assert answer(ours, b"again") == b"again"


@pytest.mark.parametrize("passes_s", [0.0, 0.001])
async def test_a_link_that_is_stalled_loses_nothing(passes_s: float) -> None:
    with open_echo() as (popen, ours), trio.fail_after(DEADLINE_S):
        proof = await faults.stall_links(popen.pid, 0.15, passes_s=passes_s)
        assert ("t 1 times" in proof) == (passes_s == 0.0)
        assert answer(ours, b"late") == b"late"


async def test_a_child_without_its_control_channel_ends_or_the_fault_is_void() -> None:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with ours, theirs, trio.fail_after(DEADLINE_S):
        fd = theirs.fileno()
        command = [sys.executable, "-c", READS, str(fd)]
        process = await trio.lowlevel.open_process(command, pass_fds=[fd])
        assert f"pid {process.pid} ended" in await faults.cut_control(process.pid, os.getpid())
        with pytest.raises(Void):
            await faults.cut_control(process.pid, os.getpid())
        await process.wait()


async def test_who_has_no_link_has_none_to_cut() -> None:
    with pytest.raises(Void, match="no connection"):
        await faults.cut_links(os.getpid(), 1)
    with pytest.raises(Void, match="no thread"):
        await faults.stall_links(os.getppid(), 0.01)


def test_links_are_drawn_as_networks_are() -> None:
    assert {family_of(kind) for kind in LINKS | NETWORK} == {"network"}
    assert links.LINKS not in ("frontend", "engine")
