"""Plan of a host, made of its options: every value is checked first."""

import math
import os
import pathlib
import socket
import stat
import sys
from typing import Any

from ... import __version__
from ...engine.config import EngineSettings, check_torch
from ...engine.errors import InvalidParameter
from ...engine.host import has_torch
from ...engine.model.bundled import bundled_model_folder
from ...runtime.hosts.host_keys import (
    KEYS_BYTES_MAX,
    ClusterKeys,
    parse_cluster_keys,
    read_cluster_keys,
)
from ...runtime.hosts.host_plan import HostPlan
from ...runtime.hosts.model_hash import model_hash
from ...runtime.launchers.door import endpoint_of

# Port of a head that is named without one.
JOIN_PORT = 7400
# In place of a file of keys: they come on stdin, in a line, from the launcher of this host.
STDIN = "-"
# Patience of a host that a launcher began: a head that was cut off is back by then, or has had
# another one begun.
PATIENCE_S = 3.0


def make_host_plan(
    model: str | None, join: tuple[str, ...], key: str, *, name: str, **engine: Any
) -> HostPlan:
    """The plan of a host, every value checked. Raises `InvalidParameter`, `ModelFolderError`."""
    if not join:
        raise InvalidParameter("join", "is missing: HEAD:PORT, where the head is")
    if not key:
        raise InvalidParameter("key", "is missing: hosts join with keys (triolet keygen FILE)")
    engines, spares = engine.pop("engines"), engine.pop("spare_engines")
    grace_s = engine.pop("drain_grace")
    if engines < 1:
        raise InvalidParameter("engines", f"must be at least 1, not {engines}")
    if not grace_s >= 0.0:
        raise InvalidParameter("drain_grace", f"must be at least 0, not {grace_s}")
    folder = str(pathlib.Path(model).resolve() if model else bundled_model_folder())
    settings = EngineSettings(model=folder, **engine)
    check_torch(settings, has_torch=has_torch())
    try:
        found = model_hash(folder)
    except OSError as error:
        raise InvalidParameter("model", f"{folder} cannot be read: {error.strerror}") from error
    return HostPlan(
        name=name or socket.gethostname(),
        heads=[endpoint_of("join", *_parted(each)) for each in join],
        keys=_keys_of_host(key),
        engines=engines,
        engine=settings,
        model_hash=found,
        version=__version__,
        spare_engines=spares,
        patience_s=PATIENCE_S if key == STDIN else math.inf,
        drain_grace_s=grace_s,
    )


def _keys_of_host(key: str) -> ClusterKeys:
    """Keys in a file, or on stdin. Raises `InvalidParameter`."""
    if key != STDIN:
        return read_cluster_keys(pathlib.Path(key), is_head=False)
    stdin = sys.stdin.fileno()
    if stat.S_ISREG(os.fstat(stdin).st_mode):
        raise InvalidParameter("key", "on stdin is for a pipe, whose end ends this host")
    content = bytearray()
    while not content.endswith(b"\n") and len(content) <= KEYS_BYTES_MAX:
        if not (part := os.read(stdin, KEYS_BYTES_MAX)):
            break
        content += part
    return parse_cluster_keys(bytes(content), "stdin", is_head=False)


def _parted(address: str) -> tuple[str, str]:
    """Host and port of a head; an IPv6 address alone is in brackets."""
    host, _, port = address.rpartition(":")
    if not host or address.endswith("]"):
        return address, str(JOIN_PORT)
    return host, port
