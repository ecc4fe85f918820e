"""A program of one thread that makes forked calls, and prints how each ended as JSON."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable

import trio
import trio.testing

from triolet.nurseries.processes.forked_call import (
    RESULT_BYTES_MAX,
    CallLimits,
    ForkedCallDied,
    call_forked,
)
from triolet.nurseries.processes.orphans import child_pids

LIMITS = CallLimits(cpu_s=1, memory_bytes=64 << 20, stack_bytes=1 << 20)


def fill_memory() -> bytes:
    """More than a call may map."""
    return bytes(bytearray(256 << 20)[:1])


def never_end() -> bytes:
    while True:
        pass


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
    "crash": crash,
    "raises": fail,
    "killed": lambda: die_of(signal.SIGKILL),
    "stopped": lambda: die_of(signal.SIGSTOP),
    "descriptors": lambda: json.dumps(sorted(map(int, os.listdir("/proc/self/fd")))).encode(),
}


async def main() -> None:
    """Every call, then one that is cancelled."""
    ends: dict[str, object] = {}
    for name, function in CALLS.items():
        try:
            ends[name] = (await call_forked(function, LIMITS)).decode()
        except ForkedCallDied as death:
            ends[name] = [death.cause, death.is_own_fault]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_forked, never_end, LIMITS)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel("the test is over")
    ends["children left"] = len(child_pids(os.getpid()))
    sys.stdout.write(json.dumps(ends))


if __name__ == "__main__":
    trio.run(main)
