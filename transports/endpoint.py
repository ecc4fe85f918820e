"""Endpoints of sockets, and identities of the spokes' link generations.

Sans-IO: text and bytes only. `zmq_sockets` binds and connects, `zmq_channel` reads identities.

Local endpoints are abstract Unix sockets: no file to leave behind and no path to steal, because a
second binder is refused by the kernel. An identity names the *spoke* end of a link in one
generation; it starts with a letter because ZeroMQ keeps a leading zero for itself, and carries the
generation because a bare rank would let a successor receive what was queued for its predecessor.
"""

import struct

import attrs

# sun_path has 108 bytes; an abstract name spends the first on its NUL, libzmq one on its end.
_LOCAL_NAME_MAX_BYTES = 106
_LOCAL_PREFIX = "ipc://@"
_TCP_PREFIX = "tcp://"
IPC_PREFIX = "ipc://"
# The kernel's limit of a path in `sun_path`, with room for a rank behind it.
_PATH_BYTES_MAX = 98
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_PORT_MAX = 65535

_IDENTITY = struct.Struct(">cHII")
_IDENTITY_LETTER = b"E"
IDENTITY_BYTES = _IDENTITY.size
# At a generation a second, the most that a link that keeps breaking opens, these last 136 years.
GENERATION_MAX = 0xFFFFFFFF


@attrs.frozen
class BadEndpoint(Exception):
    """The text does not name an endpoint that we bind or connect."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.text!r} is not an endpoint: {self.reason}"


@attrs.frozen
class BadIdentity(Exception):
    """Bytes that are no identity of ours: a stray peer, to be counted and ignored."""

    identity: bytes

    def __str__(self) -> str:
        return f"{self.identity!r} is not the identity of a link"


def check_endpoint(text: str) -> None:
    """Accept `ipc://@name` and `tcp://host:port` (port 0 asks the kernel to choose).

    Raises `BadEndpoint` for anything else.
    """
    if is_local(text):
        name = text.removeprefix(_LOCAL_PREFIX)
        if not name or not name.isascii() or not name.isprintable():
            raise BadEndpoint(text, "the name must be printable ASCII")
        if len(name) > _LOCAL_NAME_MAX_BYTES:
            raise BadEndpoint(text, f"the name is longer than {_LOCAL_NAME_MAX_BYTES} bytes")
        return
    if not text.startswith(_TCP_PREFIX):
        raise BadEndpoint(text, "only ipc://@name and tcp://host:port are used")
    host, _, port = text.removeprefix(_TCP_PREFIX).rpartition(":")
    if not host:
        raise BadEndpoint(text, "host or port is missing")
    if not (port.isascii() and port.isdigit()) or int(port) > _PORT_MAX:
        raise BadEndpoint(text, f"the port is not a number up to {_PORT_MAX}")


def is_local(endpoint: str) -> bool:
    """True for an abstract Unix socket: no heartbeats, the kernel reports a lost peer."""
    return endpoint.startswith(_LOCAL_PREFIX)


def is_ipv6(endpoint: str) -> bool:
    """True for `tcp://[address]:port`."""
    return endpoint.startswith(f"{_TCP_PREFIX}[")


def abstract_endpoint(run_id: str, role: str, rank: int, epoch: int, *, socket: str) -> str:
    """The local endpoint of one socket of one process incarnation.

    Every user of the network namespace can read the names that are bound (`/proc/net/unix`), so
    `run_id` must hold something drawn for this process, or the next one's name can be bound first.
    """
    text = f"{_LOCAL_PREFIX}triolet-{run_id}-{role}-{rank}-{epoch}-{socket}"
    check_endpoint(text)
    return text


def encode_identity(rank: int, epoch: int, generation: int) -> bytes:
    """The ZeroMQ routing id of a spoke's socket in one generation, `IDENTITY_BYTES` long."""
    return _IDENTITY.pack(_IDENTITY_LETTER, rank, epoch, generation)


def decode_identity(identity: bytes) -> tuple[int, int, int]:
    """(rank, epoch, generation); raises `BadIdentity`."""
    if len(identity) != IDENTITY_BYTES:
        raise BadIdentity(identity)
    letter, rank, epoch, generation = _IDENTITY.unpack(identity)
    if letter != _IDENTITY_LETTER:
        raise BadIdentity(identity)
    return rank, epoch, generation


def check_public_endpoint(text: str, *, is_open: bool) -> None:
    """Accept `ipc://PATH`, `ipc://@name`, and `tcp://host:port` of loopback, or any if `is_open`.

    Raises `BadEndpoint`.
    """
    if text.startswith(IPC_PREFIX):
        path = text.removeprefix(IPC_PREFIX)
        if not path.removeprefix("@") or len(path.encode()) > _PATH_BYTES_MAX:
            raise BadEndpoint(text, "the path is empty or too long")
        return
    host, _, port = text.removeprefix(_TCP_PREFIX).rpartition(":")
    if not text.startswith(_TCP_PREFIX) or not host:
        raise BadEndpoint(text, "must be ipc://PATH or tcp://HOST:PORT")
    if not (port.isascii() and port.isdigit()) or not 0 < int(port) < 2**16:
        raise BadEndpoint(text, "the port is no number from 1 to 65535")
    if host not in _LOOPBACK and not is_open:
        raise BadEndpoint(text, "other machines could read it")


def endpoint_of_rank(text: str, rank: int) -> str:
    """The endpoint of one of several publishers: the next port, or a suffix, as vLLM has it."""
    if rank == 0 or not text:
        return text
    if text.startswith(_TCP_PREFIX):
        host, _, port = text.rpartition(":")
        return f"{host}:{int(port) + rank}"
    return f"{text}_dp{rank}"
