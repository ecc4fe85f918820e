"""Strangers at the port at which hosts join: connections at a steady rate, of those without a key.

A program of its own, beside the head. They take turns: one says nothing, as who looks for open
ports; one says what is no protocol; one shakes hands as CURVE begins, which costs the head a
Diffie-Hellman before it can know that there is no key. Each stays for a moment.
"""

import contextlib
import os
import socket
import sys
from collections import deque

import trio

STAYS_S = 0.2
# Between two bursts: as many connections as are due by then.
BURST_S = 0.005
_SIGNATURE, _VERSION = b"\xff" + bytes(8) + b"\x7f", bytes([3, 1])
_GREETING = _SIGNATURE + _VERSION + b"CURVE".ljust(20, b"\0") + bytes(32)
# CurveZMQ's first command: version, padding, a key, a nonce, and a box that none can open.
_HELLO = b"\x05HELLO" + bytes([1, 0]) + bytes(72) + os.urandom(32) + bytes(8) + os.urandom(80)
_COMMAND = 0x04
SAYINGS = (b"", os.urandom(64), _GREETING + bytes([_COMMAND, len(_HELLO)]) + _HELLO)


async def bother(address: str, port: int, *, rate: float, seconds: float) -> int:
    """Come so often a second, for so long; how many there were."""
    began_s, count = trio.current_time(), 0
    # {when it came, its socket}, bounded by the rate.
    here: deque[tuple[float, socket.socket]] = deque()
    while (passed_s := trio.current_time() - began_s) < seconds or here:
        while count < rate * passed_s and passed_s < seconds:
            stranger = socket.socket()
            stranger.setblocking(False)
            here.append((passed_s, stranger))
            with contextlib.suppress(OSError):  # it is under way, or refused
                stranger.connect((address, port))
            with contextlib.suppress(OSError):
                stranger.send(SAYINGS[count % len(SAYINGS)])
            count += 1
        while here and here[0][0] < passed_s - STAYS_S:
            here.popleft()[1].close()
        await trio.sleep(BURST_S)
    return count


def main(address: str, port: str, rate: str, seconds: str) -> None:
    """Bother, and print how often."""
    run = trio.run
    count = run(lambda: bother(address, int(port), rate=float(rate), seconds=float(seconds)))
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
