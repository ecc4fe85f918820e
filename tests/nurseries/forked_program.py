"""A program of one thread that makes forked calls, and prints how each ended as JSON."""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable

import trio
import trio.testing

from triolet.fuzz.observers import state_of
from triolet.nurseries.processes.forked_call import (
    CALLS_MAX,
    RESULT_BYTES_MAX,
    CallLimits,
    ForkedCallDied,
    ForkedCalls,
)
from triolet.nurseries.processes.orphans import child_pids

LIMITS = CallLimits(cpu_s=1, memory_bytes=64 << 20, stack_bytes=1 << 20, niceness=3)
# Longer than the buffer of a socket.
LONG = 1 << 20
# Processor seconds: more than a used copy has, less than any has.
BUSY_S = 0.5
# Of a copy: how many calls it has had.
had: list[bytes] = []


def fill_memory() -> bytes:
    """More than a call may map."""
    return bytes(bytearray(256 << 20)[:1])


def never_end() -> bytes:
    while True:
        pass


def wait_nice() -> bytes:
    """How much nicer it is than its owner, as soon as it is."""
    owners = os.getpriority(os.PRIO_PROCESS, os.getppid())
    while (own := os.getpriority(os.PRIO_PROCESS, 0)) == owners:
        pass
    return b"%d" % (own - owners)


def crash() -> bytes:
    ctypes.string_at(0)
    return b""


def die_of(number: signal.Signals) -> bytes:
    os.kill(os.getpid(), number)
    return b""


def fail() -> bytes:
    sys.stderr.write("what a library says when it panics\n")
    raise ValueError("what a client sent")


CALLS: dict[str, Callable[[], bytes]] = {
    "result": lambda: b"found",
    "too large": lambda: bytes(RESULT_BYTES_MAX + 1),
    "memory": fill_memory,
    "processor": never_end,
    "nice": wait_nice,
    "crash": crash,
    "raises": fail,
    "killed": lambda: die_of(signal.SIGKILL),
    "stopped": lambda: die_of(signal.SIGSTOP),
    "descriptors": lambda: json.dumps(sorted(map(int, os.listdir("/proc/self/fd")))).encode(),
}


def stay_busy() -> bytes:
    until = time.process_time() + BUSY_S
    while time.process_time() < until:
        pass
    return b"%d" % len(had)


def crash_if_used() -> bytes:
    return crash() if len(had) > 1 else b"1"


REUSED: dict[str, Callable[[], bytes]] = {
    "count": lambda: b"%d" % len(had),
    "bad": lambda: b"bad %d" % len(had),
    "busy": stay_busy,
    "crash if used": crash_if_used,
    "crash": crash,
    "killed": lambda: die_of(signal.SIGKILL),
}


def call_reused(argument: bytes) -> bytes:
    """The function of this name; most say how many calls their copy has had."""
    had.append(argument)
    return REUSED[argument.decode()]()


def call(argument: bytes) -> bytes:
    """The function of this name, or the length of what is none."""
    name = argument.decode()
    return CALLS[name]() if name in CALLS else b"%d bytes" % len(argument)


async def end_of(calls: ForkedCalls, argument: bytes) -> object:
    """Its result, or how it died."""
    try:
        async with calls.open_call(argument) as result:
            return result.decode()
    except ForkedCallDied as death:
        return [death.cause, death.is_own_fault]


async def reused_ends() -> dict[str, object]:
    """Calls by copies that have found something good before."""
    calls = ForkedCalls(call_reused, LIMITS, is_good=bytes.isdigit)
    counts = [await end_of(calls, b"count") for _ in range(CALLS_MAX + 1)]
    ends: dict[str, object] = {
        "again": counts == [str(n) for n in range(1, CALLS_MAX + 1)] + ["1"],
    }
    for name in ("bad", "busy", "crash if used", "crash", "killed"):
        await calls.aclose()
        used = await end_of(calls, b"count")
        ends[f"used, {name}"] = [used, await end_of(calls, name.encode())]
    waited = []
    for number in (signal.SIGKILL, signal.SIGSTOP):
        await calls.aclose()
        await end_of(calls, b"count")
        assert calls.waiting_pid is not None
        os.kill(calls.waiting_pid, number)
        waited.append(await end_of(calls, b"count"))
    ends["used, killed or stopped as it waits"] = waited
    await calls.aclose()
    return ends


async def main() -> None:
    """Every call, twice: in a copy of then, and in one that was forked ahead; and what may become
    of one that waits. Then calls that are cancelled, and those by copies that are used again."""
    calls = ForkedCalls(call, LIMITS, practice=b"result")
    ends = {name: await end_of(calls, name.encode()) for name in CALLS}
    for name in CALLS:
        calls.prepare()
        ends[f"ahead: {name}"] = await end_of(calls, name.encode())
    ends["long"] = await end_of(calls, bytes(LONG))
    for number in (signal.SIGKILL, signal.SIGSTOP):
        calls.prepare()
        assert calls.waiting_pid is not None
        os.kill(calls.waiting_pid, number)
        while state_of(calls.waiting_pid) not in ("Z", "T"):
            await trio.testing.wait_all_tasks_blocked(0.001)
        ends[f"waited, {number.name}"] = await end_of(calls, b"result")
    calls.prepare()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(end_of, calls, b"processor")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel("the test is over")
    calls.prepare()
    await calls.aclose()
    ends |= await reused_ends()
    ends["children left"] = len(child_pids(os.getpid()))
    sys.stdout.write(json.dumps(ends))


if __name__ == "__main__":
    trio.run(main)
