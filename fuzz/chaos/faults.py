"""Faults, each proven by what the kernel shows: a fault without proof did not happen.

One function for each family of kinds. They say what was seen as proof, or raise `Void`.
"""

import contextlib
import fcntl
import os
import signal
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import trio

from ..doubles.tcp_client import reset
from ..observers import (
    FIN_WAIT1,
    FIN_WAIT2,
    GONE,
    TIME_WAIT,
    NotInTime,
    start_ticks,
    state_of,
    tcp_socket,
    wait_until,
)
from ..other_process import sockets_between, stopped_thread, threads_of
from .clients import EventConnection, Lost, SocketConnection, ask
from .fault_plan import Fault, FaultKind
from .history import StreamHistory

# From a signal to what /proc shows of it; the kernel needs microseconds, a busy machine more, and
# the end of half a gigabyte of torch some tenths.
PROOF_S = 5.0
LOOK_S = 0.005
# Of a slow reader: between two looks at what waits for it.
HELD_LOOK_S = 0.1
# Whom it waits for may be stopped meanwhile, two seconds at most.
HELD_S = 5.0
# What carries links: the I/O thread of ZeroMQ, whose sockets no other thread touches.
IO_THREAD = "ZMQbg/IO"
# Of links that are slow: what comes meanwhile is late by up to so much, and then some passes.
STALL_S, PASSES_S = 0.1, 0.02
# A child that loses its root ends itself, or is ended by it.
CUT_S = 10.0
_INT = struct.Struct("i")


@attrs.frozen
class Void(Exception):
    """The fault did not take effect, or there is no proof; `reason` says why."""

    reason: str

    def __str__(self) -> str:
        return self.reason


async def kill(*pids: int, by: signal.Signals = signal.SIGKILL) -> str:
    """End all of them at once; proven when each is dead or gone, by pid and start time.

    The youngest first: a worker would be gone with its engine before its own signal.
    """
    started = {pid: start_ticks(pid) for pid in pids}
    if any(not ticks or state_of(pid) in "ZX" for pid, ticks in started.items()):
        raise Void("it was dead before the signal")
    for pid in sorted(pids, key=lambda each: (started[each], each), reverse=True):
        with contextlib.suppress(ProcessLookupError):  # it has ended since we looked
            os.kill(pid, by)
    for pid in pids:
        await prove(partial(is_dead, pid, started[pid]), f"pid {pid} is dead")
    return ", ".join(
        f"pid {pid} is {state_of(pid) if start_ticks(pid) == started[pid] else GONE}"
        for pid in pids
    )


def is_dead(pid: int, ticks: int) -> bool:
    """Whether the process that was started then is dead, reaped or not."""
    return state_of(pid) in ("Z", "X", GONE) or start_ticks(pid) != ticks


async def kill_stopped(pid: int) -> str:
    """SIGSTOP, then SIGKILL; proven when /proc shows T in between, and death after."""
    os.kill(pid, signal.SIGSTOP)
    await prove(lambda: state_of(pid) == "T", f"pid {pid} is stopped")
    return f"it was T, then {await kill(pid)}"


async def stop(seconds: float, *pids: int) -> str:
    """SIGSTOP for all in this order, then SIGCONT in the other; proven when /proc shows T in
    between, and something else after.

    Cancellation: the processes run again.
    """
    names = ", ".join(map(str, pids))
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await prove(lambda: all(state_of(pid) == "T" for pid in pids), f"{names} are stopped")
        await trio.sleep(seconds)
        if any(state_of(pid) != "T" for pid in pids):
            raise Void(f"{names} did not stay stopped")
    except ProcessLookupError:
        raise Void(f"one of {names} is gone") from None
    finally:
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    await prove(lambda: all(state_of(pid) != "T" for pid in pids), f"{names} go on")
    return f"pid {names}: T for {seconds:g} s"


async def hang(pid: int, seconds: float) -> tuple[str, float | None]:
    """SIGSTOP for ever; proven when /proc shows T, and how long it took others to end it.

    None: nobody had after so many seconds. Then it is ended here.
    """
    started = start_ticks(pid)
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        raise Void(f"pid {pid} is gone") from None
    await prove(lambda: state_of(pid) == "T" or is_dead(pid, started), f"pid {pid} is stopped")
    try:
        ended_s = await wait_until(
            lambda: is_dead(pid, started), "it is ended", seconds=seconds, look_s=LOOK_S
        )
    except NotInTime:
        return f"T for {seconds:g} s, then {await kill(pid)}", None
    return f"pid {pid} was T, and ended after {ended_s:.2f} s", ended_s


async def cut_control(pid: int, root: int) -> str:
    """End the control channel between the root and a child; proven by the child's end."""
    started = start_ticks(pid)
    with _sockets(pid, root, socket.SOCK_SEQPACKET) as found:
        _shut_down(found)
    try:
        took_s = await wait_until(
            lambda: is_dead(pid, started), "it ends", seconds=CUT_S, look_s=LOOK_S
        )
    except NotInTime:
        raise Void(f"pid {pid} lives on without its control channel") from None
    return f"pid {pid} ended {took_s:.2f} s after its control channel"


async def cut_links(pid: int, peer: int) -> str:
    """End all connections of two processes; proven when they have others instead."""
    with _sockets(pid, peer, socket.SOCK_STREAM) as found:
        before = _inodes(found)
        _shut_down(found)

    def are_new() -> bool:
        with _sockets(pid, peer, socket.SOCK_STREAM) as now:
            return len(now) >= len(before) and not _inodes(now) & before

    await prove(are_new, f"pid {pid} has other connections with {peer}")
    return f"{len(before)} connections of pid {pid} with {peer} were cut, and are others now"


async def stall_links(pid: int, seconds: float, *, passes_s: float = 0.0) -> str:
    """Stop what carries a process's links for so long, or again and again, with pauses; proven
    when /proc shows each thread stopped by a tracer (t), and not afterwards.

    Cancellation: it goes on.
    """
    threads, stops, until_s = _io_threads(pid), 0, trio.current_time() + seconds
    while trio.current_time() < until_s:
        with contextlib.ExitStack() as stopped:
            try:
                for thread in threads:
                    stopped.enter_context(stopped_thread(thread))
            except OSError as gone:
                raise Void(f"a thread of pid {pid} is gone: {gone}") from None
            if any(state_of(thread) != "t" for thread in threads):
                raise Void(f"threads {threads} of pid {pid} are not stopped")
            await trio.sleep(STALL_S if passes_s else seconds)
        stops += 1
        await trio.sleep(passes_s)
    await prove(lambda: all(state_of(each) != "t" for each in threads), f"{threads} go on")
    return f"threads {threads} of pid {pid} were t {stops} times"


async def spoil_links(fault: Fault, pid: int, peer: int) -> str:
    """Cut the links between two processes, or stall those of either: both must stand it.

    Links are abstract Unix sockets: the kernel loses, doubles and reorders nothing on them. What
    can happen is that a connection ends, and that nothing passes for a while; ZeroMQ connects again
    by itself, and what was on its way is made good by the next generation of the link.
    """
    if fault.kind is FaultKind.LINK_CUT:
        return await cut_links(pid, peer)
    passes_s = PASSES_S if fault.kind is FaultKind.LINK_DELAY else 0.0
    return await stall_links((pid, peer)[fault.token % 2], fault.seconds, passes_s=passes_s)


def _io_threads(pid: int) -> list[int]:
    try:
        found = threads_of(pid, IO_THREAD)
    except OSError as gone:
        raise Void(f"pid {pid} is gone: {gone}") from None
    if not found:
        raise Void(f"pid {pid} has no thread {IO_THREAD}")
    return found


@contextlib.contextmanager
def _sockets(pid: int, peer: int, kind: socket.SocketKind) -> Iterator[list[socket.socket]]:
    """Duplicates of its connections with another process. Raises `Void` where there is none."""
    try:
        with sockets_between(pid, peer) as found:
            mine = [each for each in found if each.type == kind]
            yield mine
    except OSError as gone:
        raise Void(f"pid {pid} is gone: {gone}") from None


def _inodes(sockets: Sequence[socket.socket]) -> frozenset[int]:
    return frozenset(os.fstat(each.fileno()).st_ino for each in sockets)


def _shut_down(sockets: Sequence[socket.socket]) -> None:
    """Raises `Void` where there is none."""
    if not sockets:
        raise Void("there is no connection")
    for each in sockets:
        with contextlib.suppress(OSError):  # its other end was closed by now
            each.shutdown(socket.SHUT_RDWR)


async def prove(condition: Callable[[], bool], what: str) -> None:
    """Wait for what shows a fault. Raises `Void`."""
    try:
        await wait_until(condition, what, seconds=PROOF_S, look_s=LOOK_S)
    except NotInTime as late:
        raise Void(str(late)) from None


async def cancel(
    fault: Fault, port: int, connection: EventConnection, history: StreamHistory
) -> str:
    """Abort a stream by its id; proven by the server's answer, and later by the stream's end."""
    if history.ending is not None:
        raise Void(f"it had ended before ({history.ending})")
    if fault.kind is FaultKind.CANCEL_SOCKET:
        assert isinstance(connection, SocketConnection)
        await connection.send({"type": "response.cancel", "response_id": history.response_id})
        return "sent"
    try:
        path = f"/v1/responses/{history.response_id}/cancel"
        status, answer = await ask(port, "POST", path, key=connection.key)
    except Lost as lost:
        raise Void(f"the cancel had no answer: {lost}") from None
    if status != 200:
        raise Void(f"the cancel was answered {status}: {answer}")
    return f"answered {answer['status']}"


async def disconnect(
    fault: Fault, port: int, connection: EventConnection, history: StreamHistory
) -> str:
    """End the connection in this kind's way; proven by what the kernel did with our end of it."""
    if history.ending is not None:
        raise Void(f"it had ended before ({history.ending})")
    stream = connection.stream
    mine = stream.socket.getsockname()[1]
    match fault.kind:
        case FaultKind.LEAVE:
            await connection.leave()
            history.leave(trio.current_time())
            return "close frame sent"
        case FaultKind.RST:
            reset(stream)
            history.leave(trio.current_time())
            if tcp_socket(mine, port) is not None:
                raise Void("our end is still there: no RST was sent")
            return "our end is gone at once"
        case FaultKind.FIN:
            history.leave(trio.current_time())
            while unread_bytes(stream):  # closing with unread bytes would be a reset
                await stream.receive_some(65536)
            stream.socket.close()
            return "closed with nothing unread"
        case _:
            await stream.send_eof()
            end = tcp_socket(mine, port)
            if end is not None and end.state not in (FIN_WAIT1, FIN_WAIT2, TIME_WAIT):
                raise Void(f"our end is in state {end.state}")
            return f"our end is in state {end.state if end else GONE}"


async def hold(fault: Fault, port: int, connection: EventConnection) -> str:
    """Read nothing, or a byte a second, as long as the fault says.

    Proven when the server's end holds bytes that it cannot send; the fault's time begins then.
    """
    mine = connection.stream.socket.getsockname()[1]
    most = read = 0

    def is_held() -> bool:
        nonlocal most
        theirs = tcp_socket(port, mine)
        most = max(most, theirs.unsent if theirs else 0)
        return most > 0

    try:
        await wait_until(is_held, "the server's end is held up", seconds=HELD_S, look_s=HELD_LOOK_S)
    except NotInTime as late:
        raise Void(str(late)) from None
    began_s, held_s = trio.current_time(), 0.0
    while held_s < fault.seconds:
        await trio.sleep(HELD_LOOK_S)
        held_s = min(trio.current_time() - began_s, fault.seconds)
        is_held()
        while fault.kind is FaultKind.SLOW_READER and read < int(held_s):  # several, after a pause
            read += len(await connection.stream.receive_some(1))
    return f"up to {most} bytes waited in the server's end, {read} were read"


def unread_bytes(stream: trio.SocketStream) -> int:
    """What has arrived and was not read."""
    answer = fcntl.ioctl(stream.socket.fileno(), termios.FIONREAD, _INT.pack(0))
    (count,) = _INT.unpack(answer)
    assert isinstance(count, int)
    return count
