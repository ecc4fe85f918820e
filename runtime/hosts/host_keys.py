"""Keys of a cluster: which head a host trusts, and which hosts a head lets in.

A file of JSON that only its owner may read, made by `triolet keygen`. The head needs all of it; a
host needs the head's public key and the pair of hosts. A *ticket* is such keys for one host that a
launcher places: a pair of its own, let in until the launcher gives that host up.

The pair of hosts is rotated without a stop: a new one takes its place in the file, and the old one
is *retiring*, let in besides until it is retired.
"""

import json
import os
import pathlib
import stat
from collections.abc import Callable
from contextlib import suppress

import attrs

from ...engine.errors import InvalidParameter
from ...transports.links.curve import make_link_keys
from ...transports.links.link_keys import KEY_BYTES, LinkKeys, check_key

KEYS_BYTES_MAX = 4096
PAIRS = ("head", "hosts")
# Rotations before the first of their pairs must be retired.
RETIRING_MAX = 4
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@attrs.frozen
class ClusterKeys:
    """Keys of the head and of its hosts; a host need not have the head's secret."""

    head_public: bytes = attrs.field(validator=check_key)
    hosts: LinkKeys
    head_secret: bytes = attrs.field(default=b"", repr=False)
    # Public keys of pairs that hosts had before.
    retiring: tuple[bytes, ...] = ()

    @property
    def let_in(self) -> tuple[bytes, ...]:
        """Public keys by which hosts may come."""
        return (self.hosts.public, *self.retiring)

    @property
    def head(self) -> LinkKeys:
        """The head's own pair, where its secret is."""
        return LinkKeys(self.head_public, self.head_secret)

    def text(self) -> str:
        """Content of the file; of a ticket without the head's secret, in one line."""
        head = {"public": self.head_public.hex(), "secret": self.head_secret.hex()}
        if not self.head_secret:
            del head["secret"]
        hosts = {"public": self.hosts.public.hex(), "secret": self.hosts.secret.hex()}
        indent = 2 if self.head_secret else None
        retiring = {"retiring": [key.hex() for key in self.retiring]} if self.retiring else {}
        return json.dumps({"head": head, "hosts": hosts, **retiring}, indent=indent)

    def rotated(self) -> "ClusterKeys":
        """The keys with another pair of hosts; the present one is retiring."""
        return attrs.evolve(self, hosts=make_link_keys(), retiring=self.let_in)

    def retired(self) -> "ClusterKeys":
        """The keys without any that is retiring."""
        return attrs.evolve(self, retiring=())

    def make_ticket(self) -> "ClusterKeys":
        """Draw a pair for one host of this head."""
        return ClusterKeys(self.head_public, make_link_keys())


def make_cluster_keys() -> ClusterKeys:
    """Draw new keys."""
    head, hosts = make_link_keys(), make_link_keys()
    return ClusterKeys(head.public, hosts, head.secret)


def write_cluster_keys(path: pathlib.Path) -> None:
    """Draw keys and write them to a file that was not there. Raises `InvalidParameter`."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidParameter("file", f"{path} cannot be made: {error.strerror}") from error
    with open(file, "w", encoding="ascii") as text:
        text.write(make_cluster_keys().text() + "\n")


def rotate_cluster_keys(path: pathlib.Path) -> None:
    """Have another pair of hosts in a head's file, whose present one is retiring.

    Raises `InvalidParameter`.
    """
    if len(read_cluster_keys(path, is_head=True).retiring) >= RETIRING_MAX:
        raise InvalidParameter("rotate", f"{path} has {RETIRING_MAX} pairs to --retire first")
    _change(path, ClusterKeys.rotated)


def retire_cluster_keys(path: pathlib.Path) -> None:
    """Have no pair in a head's file that is retiring. Raises `InvalidParameter`."""
    _change(path, ClusterKeys.retired)


def _change(path: pathlib.Path, change: Callable[[ClusterKeys], ClusterKeys]) -> None:
    """Replace a file as a whole: who reads it meanwhile has the old one or the new."""
    text = change(read_cluster_keys(path, is_head=True)).text() + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(file, "w", encoding="ascii") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(file)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise InvalidParameter("file", f"{path} cannot be written: {error.strerror}") from error


def read_cluster_keys(path: pathlib.Path, *, is_head: bool) -> ClusterKeys:
    """Read keys; a head's must have its secret.

    Raises `InvalidParameter` for a file that cannot be read, that others may read, or that is none.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(KEYS_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidParameter("key", f"{path} cannot be read: {error.strerror}") from error
    if mode & _OTHERS:
        raise InvalidParameter("key", f"{path} can be read by others: chmod 600 {path}")
    return parse_cluster_keys(content, str(path), is_head=is_head)


def parse_cluster_keys(content: bytes, source: str, *, is_head: bool) -> ClusterKeys:
    """Keys in a file's content. Raises `InvalidParameter`, which names the source."""
    try:
        found = json.loads(content.decode("ascii"))
        head, hosts = ({k: bytes.fromhex(v) for k, v in found[n].items()} for n in PAIRS)
        pair = LinkKeys(hosts["public"], hosts["secret"])
        retiring = tuple(bytes.fromhex(key) for key in found.get("retiring", ()))
        if any(len(key) != KEY_BYTES for key in retiring):
            raise ValueError("a key is too short")
        keys = ClusterKeys(head["public"], pair, head.get("secret", b""), retiring)
        if is_head and len(keys.head_secret) != KEY_BYTES:
            raise ValueError("the secret is missing")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # The error's own text has bytes of a key.
        reason = f"{source} is no file of `triolet keygen`"
        raise InvalidParameter("key", reason + ", with the head's secret" * is_head) from None
    return keys
