"""Virtual network: hosts as network namespaces, with links that can be cut, slow or lossy.

`open_virtual_network` owns the `switch`, whose process has all there is: when that ends, whatever
has killed it, the devices do; a namespace when its last process has ended, too. Without the right
to make namespaces it tries once more in a user namespace of its own.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import attrs
import trio

from ....nurseries.tasks.service import open_service
from ...observers import PROC, all_pids
from .link_rules import Way, WayCounts
from .namespaces import ADDRESSES, NoNamespaces, inside
from .switch import ORDER_BYTES_MAX

SWITCH = f"{__package__}.switch"
# Python and trio load on a busy machine; an order takes the switch some microseconds.
BEGIN_S, ORDER_S = 30.0, 10.0
# Ways to begin the switch, the first that may make namespaces: as we are, or as root of our own.
BEGINNINGS = ((), ("unshare", "--user", "--map-root-user", "--net"))
_FD_BYTES = 4


@attrs.frozen
class SwitchEnded(Exception):
    """The switch's process has ended while hosts still needed it."""

    def __str__(self) -> str:
        return "the switch between the hosts has ended"


@attrs.define(eq=False)
class VirtualNetwork:
    """Hosts 1 to N and the links between them. Made by `open_virtual_network`."""

    count: int
    popen: subprocess.Popen[bytes]
    is_in_user_namespace: bool
    _control: trio.socket.SocketType
    # {host: descriptor of its namespace in the switch}
    _nets: Mapping[int, int]
    # {host: its namespace, as /proc calls it}
    _names: dict[int, str] = attrs.field(init=False)
    _one: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self._names = {host: os.readlink(self._path(host)) for host in self.hosts}

    @property
    def hosts(self) -> Sequence[int]:
        """Their numbers."""
        return range(1, self.count + 1)

    def address(self, host: int, family: int = socket.AF_INET) -> str:
        """Address of a host as the others see it."""
        return ADDRESSES[socket.AddressFamily(family)].format(host)

    def words(self, host: int) -> list[str]:
        """Words before a command that is to run on a host; its pid is that of the command."""
        user = (f"--user=/proc/{self.popen.pid}/ns/user", "--preserve-credentials")
        return [
            *("nsenter", f"--net={self._path(host)}"),
            *(user if self.is_in_user_namespace else ()),
            "--",
        ]

    async def socket(self, host: int, family: int = socket.AF_INET) -> trio.socket.SocketType:
        """A TCP socket on a host, used from here. Raises `SwitchEnded`."""
        _, fd = await self._order(order="socket", host=host, family=int(family))
        return trio.socket.socket(fileno=fd)

    def inside(self, host: int) -> AbstractContextManager[None]:
        """Have this thread, and those that it starts, on a host. Raises `OSError` as another user
        than root."""
        return inside(self._path(host))

    async def change(self, ways: Iterable[Way], **changes: float | bool) -> None:
        """Change the rule of these ways, for what is sent from now on. Raises `SwitchEnded`."""
        await self._order(order="change", ways=list(ways), changes=changes)

    async def cut(self, ways: Iterable[Way]) -> None:
        """Let nothing pass, without a word to either end. Raises `SwitchEnded`."""
        await self.change(ways, is_cut=True)

    async def heal(self, ways: Iterable[Way]) -> None:
        """End a cut; other changes stay. Raises `SwitchEnded`."""
        await self.change(ways, is_cut=False)

    async def counts(self) -> dict[Way, WayCounts]:
        """{way: frames so far}. Raises `SwitchEnded`."""
        found, _ = await self._order(order="counts")
        return {
            (source, target): WayCounts(passed, dropped)
            for source, target, passed, dropped in found
        }

    def ways(self, host: int) -> list[Way]:
        """Every way from and to a host."""
        others = [other for other in self.hosts if other != host]
        return [*((host, other) for other in others), *((other, host) for other in others)]

    def pids(self, host: int) -> list[int]:
        """Living processes of a host."""
        return [pid for pid in all_pids() if _namespace_of(pid) == self._names[host]]

    def kill(self, host: int) -> list[int]:
        """End all processes of a host at once, as its power does; which there were."""
        killed: list[int] = []
        while found := self.pids(host):  # those that were started meanwhile, too
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed += (pid for pid in found if pid not in killed)
        return killed

    def close(self) -> None:
        """End every host with all its processes, and the switch."""
        for host in self.hosts:
            self.kill(host)
        self._control.close()
        _end(self.popen)

    def _path(self, host: int) -> pathlib.Path:
        return PROC / str(self.popen.pid) / "fd" / str(self._nets[host])

    async def _order(self, **order: object) -> tuple[Any, int]:
        """The answer, and the descriptor that came with it, or -1."""
        async with self._one:
            with trio.fail_after(ORDER_S, shield=True):  # the next answer must be the next order's
                try:
                    await self._control.send(json.dumps(order).encode())
                    data, rights, _, _ = await self._control.recvmsg(
                        ORDER_BYTES_MAX, socket.CMSG_SPACE(_FD_BYTES)
                    )
                except OSError:
                    raise SwitchEnded from None
        if not data:
            raise SwitchEnded
        fds = [int.from_bytes(each, sys.byteorder) for _, _, each in rights]
        return json.loads(data), fds[0] if fds else -1


@asynccontextmanager
async def open_virtual_network(hosts: int, *, seed: int = 1) -> AsyncIterator[VirtualNetwork]:
    """So many hosts, linked without faults; `seed` is that of what gets lost.

    Raises `NoNamespaces`, or `SwitchEnded` if the switch ends before the block. Afterwards no
    process of any host is left.
    """
    async with open_service(_run_network, hosts, seed, name="switch") as service:
        network = service.value
        assert isinstance(network, VirtualNetwork)
        yield network


async def _run_network(
    hosts: int, seed: int, *, task_status: trio.TaskStatus[VirtualNetwork]
) -> None:
    network = await _begin(hosts, seed)
    try:
        task_status.started(network)
        pidfd = os.pidfd_open(network.popen.pid)
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        raise SwitchEnded
    finally:
        network.close()


async def _begin(hosts: int, seed: int) -> VirtualNetwork:
    """Raises `NoNamespaces`, of each way to begin."""
    reasons: list[str] = []
    for before in BEGINNINGS:
        popen, control = _spawn_switch(before, hosts, seed)
        try:
            with trio.fail_after(BEGIN_S):
                answer = json.loads(await control.recv(ORDER_BYTES_MAX) or '{"reason": "it ended"}')
            if not answer["reason"]:
                nets = {int(host): net for host, net in answer["nets"].items()}
                return VirtualNetwork(hosts, popen, bool(before), control, nets)
        except BaseException:
            control.close()
            _end(popen)
            raise
        control.close()
        _end(popen)
        reasons.append(" ".join([*before[:1], answer["reason"]]))
    raise NoNamespaces("; ".join(reasons))


def _spawn_switch(
    before: Sequence[str], hosts: int, seed: int
) -> tuple[subprocess.Popen[bytes], trio.socket.SocketType]:
    """Its process, and our end of the socket for orders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        words = [*before, sys.executable, "-m", SWITCH, *map(str, (theirs.fileno(), hosts, seed))]
        popen = subprocess.Popen(words, pass_fds=[theirs.fileno()])
    return popen, trio.socket.from_stdlib_socket(ours)


def _end(popen: subprocess.Popen[bytes]) -> None:
    popen.kill()
    popen.wait()


def _namespace_of(pid: int) -> str:
    """Network of a process; "" when it is gone, or of others."""
    try:
        return os.readlink(PROC / str(pid) / "ns" / "net")
    except OSError:
        return ""
