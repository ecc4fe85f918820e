"""Keys of a cluster: which head a host trusts, and which hosts a head lets in.

A file of JSON that only its owner may read, made by `triolet keygen`. The head needs all of it; a
host needs the head's public key and the pair of hosts. A *ticket* is such keys for one host that a
launcher places: a pair of its own, let in until the launcher gives that host up.
"""

import json
import os
import pathlib
import stat

import attrs

from ...engine.errors import InvalidParameter
from ...transports.links.curve import make_link_keys
from ...transports.links.link_keys import KEY_BYTES, LinkKeys, check_key

KEYS_BYTES_MAX = 4096
PAIRS = ("head", "hosts")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@attrs.frozen
class ClusterKeys:
    """Keys of the head and of its hosts; a host need not have the head's secret."""

    head_public: bytes = attrs.field(validator=check_key)
    hosts: LinkKeys
    head_secret: bytes = attrs.field(default=b"", repr=False)

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
        return json.dumps({"head": head, "hosts": hosts}, indent=indent)

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
        keys = ClusterKeys(head["public"], pair, head.get("secret", b""))
        if is_head and len(keys.head_secret) != KEY_BYTES:
            raise ValueError("the secret is missing")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # The error's own text has bytes of a key.
        reason = f"{source} is no file of `triolet keygen`"
        raise InvalidParameter("key", reason + ", with the head's secret" * is_head) from None
    return keys
