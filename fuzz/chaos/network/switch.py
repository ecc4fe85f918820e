"""Switch between hosts: a process of its own that passes frames between TAP devices.

Its kernel may know no netem, and any may be lent without root: so each frame comes by here, and
`link_rules` says what becomes of it. Orders come over a SEQPACKET socket as JSON, one at a time,
each with its answer; the first answer says whether there are hosts at all. The socket's end is the
switch's, and the end of the switch that of all devices.

    python -m triolet.fuzz.chaos.network.switch CONTROL_FD HOSTS SEED
"""

import contextlib
import json
import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import trio

from .link_rules import LinkRules
from .namespaces import Namespace, NoNamespaces, make_namespace, socket_in

# A frame of Ethernet, and to spare; frames between two looks at what else is to be done.
FRAME_BYTES_MAX, BURST_FRAMES = 2048, 64
ORDER_BYTES_MAX = 65536


@attrs.define(eq=False)
class Switch:
    """Switch of these namespaces, by host."""

    namespaces: Mapping[int, Namespace]
    links: LinkRules
    # Cancelled by time alone: when the next frame is due.
    _until_due: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def run(self, control: trio.socket.SocketType) -> None:
        """Pass frames and carry orders out, until the other end of `control` is closed."""
        async with trio.open_nursery() as nursery:
            for namespace in self.namespaces.values():
                nursery.start_soon(self._run_host, namespace, name=f"host {namespace.host}")
            nursery.start_soon(self._run_late, name="late frames")
            while order := await control.recv(ORDER_BYTES_MAX):
                answer, fds = self._carry_out(json.loads(order))
                await control.sendmsg([json.dumps(answer).encode()], _rights(fds))
                for fd in fds:
                    os.close(fd)
            nursery.cancel_scope.cancel("nobody orders any more")

    async def _run_host(self, namespace: Namespace) -> None:
        while True:
            await trio.lowlevel.wait_readable(namespace.tap)
            with contextlib.suppress(BlockingIOError):
                for _ in range(BURST_FRAMES):
                    frame = os.read(namespace.tap, FRAME_BYTES_MAX)
                    self.links.handle_frame(namespace.host, frame, trio.current_time())
            self._deliver()

    async def _run_late(self) -> None:
        while True:
            with trio.CancelScope(deadline=self.links.next_deadline()) as self._until_due:
                await trio.sleep_forever()
            self._deliver()

    def _deliver(self) -> None:
        for target, frame in self.links.take_due(trio.current_time()):
            with contextlib.suppress(OSError):  # its device is down, or full: the frame is lost
                os.write(self.namespaces[target].tap, frame)
        self._until_due.deadline = self.links.next_deadline()

    def _carry_out(self, order: Mapping[str, Any]) -> tuple[object, Sequence[int]]:
        """The answer, and descriptors that go with it."""
        match order["order"]:
            case "change":
                for source, target in order["ways"]:
                    self.links.change((source, target), **order["changes"])
            case "counts":
                return [
                    [*way, counts.passed, counts.dropped]
                    for way, counts in self.links.counts().items()
                ], ()
            case "socket":
                made = socket_in(self.namespaces[order["host"]], order["family"])
                return {}, (made.detach(),)
        return {}, ()


def _rights(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if fds else []


def main(control_fd: int, hosts: int, seed: int) -> None:
    """Make hosts 1 to `hosts`, say so, and be their switch."""
    with contextlib.suppress(PermissionError):  # late frames are faults that were not ordered
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with contextlib.ExitStack() as stack, socket.socket(fileno=control_fd) as control:
        namespaces: dict[int, Namespace] = {}
        try:
            for host in range(1, hosts + 1):
                namespaces[host] = make_namespace(host)
                stack.callback(namespaces[host].close)
        except NoNamespaces as error:
            control.send(json.dumps({"reason": error.reason}).encode())
            return
        nets = {host: namespace.net for host, namespace in namespaces.items()}
        control.send(json.dumps({"reason": "", "nets": nets}).encode())
        switch = Switch(namespaces, LinkRules(namespaces, random.Random(seed)))
        trio.run(switch.run, trio.socket.from_stdlib_socket(control))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
