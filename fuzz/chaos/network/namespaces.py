"""Network namespaces with a TAP device each, which nothing but descriptors keeps alive.

They have no names: `ip netns add` would leave mounts in /run/netns if its caller were killed, and
`ip netns exec` mounts /sys anew for each command. A namespace ends with the last descriptor and the
last process of it, whatever happened. `nsenter` starts a process there and is that process then.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import partial

import attrs

TUN = pathlib.Path("/dev/net/tun")
HOME = pathlib.Path("/proc/thread-self/ns/net")
DEVICE = "e0"
NEEDED = ("ip", "nsenter")
# {family: address of a host, as text}; all hosts are in one network.
ADDRESSES = {socket.AF_INET: "10.78.0.{}", socket.AF_INET6: "fd78::{}"}
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


@attrs.frozen
class NoNamespaces(Exception):
    """This process may not, or cannot, make hosts; `reason` says why."""

    reason: str

    def __str__(self) -> str:
        return f"no network namespaces: {self.reason}"


@attrs.frozen
class Namespace:
    """A host's network: descriptors of its namespace and of its TAP device."""

    host: int
    net: int
    tap: int

    def close(self) -> None:
        """Give both up; the device ends at once, the namespace with its last process."""
        os.close(self.tap)
        os.close(self.net)


def make_namespace(host: int) -> Namespace:
    """A namespace with addresses of this host, whose device is up. Raises `NoNamespaces`."""
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        raise NoNamespaces(f"{' and '.join(missing)} not found: install iproute2 and util-linux")
    if not TUN.exists():
        raise NoNamespaces(f"there is no {TUN}: load the module tun, or pass the device on")
    with _elsewhere(_leave):
        try:
            tap = _open_tap()
        except OSError as error:
            raise NoNamespaces(f"{TUN} needs CAP_NET_ADMIN: {error}") from error
        try:
            _configure(host)
            return Namespace(host, os.open(HOME, os.O_RDONLY), tap)
        except BaseException:
            os.close(tap)
            raise


@contextlib.contextmanager
def inside(path: pathlib.Path) -> Iterator[None]:
    """This thread, and those that it starts, in the namespace of that file. Raises `OSError`."""
    net = os.open(path, os.O_RDONLY)
    try:
        with _elsewhere(partial(_enter, net)):
            yield
    finally:
        os.close(net)


def socket_in(namespace: Namespace, family: int) -> socket.socket:
    """A TCP socket of that namespace, whoever uses it. Raises `OSError`."""
    with _elsewhere(partial(_enter, namespace.net)):
        return socket.socket(family)


def _open_tap() -> int:
    tap = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        name = struct.pack("16sH", DEVICE.encode(), _IFF_TAP | _IFF_NO_PI)
        fcntl.ioctl(tap, _TUNSETIFF, name)
    except OSError:
        os.close(tap)
        raise
    return tap


def _configure(host: int) -> None:
    """Raises `NoNamespaces`."""
    orders = f"""
        link set {DEVICE} address 02:00:00:00:00:{host:02x}
        addr add {ADDRESSES[socket.AF_INET].format(host)}/24 dev {DEVICE}
        addr add {ADDRESSES[socket.AF_INET6].format(host)}/64 dev {DEVICE} nodad
        link set lo up
        link set {DEVICE} up
    """
    done = subprocess.run(["ip", "-batch", "-"], input=orders, capture_output=True, text=True)
    if done.returncode:
        raise NoNamespaces(f"ip: {done.stderr.strip()}")


@contextlib.contextmanager
def _elsewhere(enter: Callable[[], None]) -> Iterator[None]:
    """This thread in another namespace, as `enter` puts it; and in its own again afterwards."""
    home = os.open(HOME, os.O_RDONLY)
    try:
        enter()
        try:
            yield
        finally:
            _enter(home)
    finally:
        os.close(home)


def _leave() -> None:
    """Enter a new namespace. Raises `NoNamespaces`."""
    if _libc.unshare(_CLONE_NEWNET):
        raise NoNamespaces(f"a namespace needs root, or CAP_SYS_ADMIN: {_error()}")


def _enter(net: int) -> None:
    """Raises `OSError`."""
    if _libc.setns(net, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), _error())


def _error() -> str:
    number = ctypes.get_errno()
    return f"{errno.errorcode[number]} {os.strerror(number)}"
