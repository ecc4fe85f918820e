"""Remote side of a frontend: sockets by which engines of other machines reach it."""

import socket
from collections.abc import Sequence
from contextlib import suppress

from ...engine.errors import InvalidParameter
from ...transports.links.curve import make_link_keys
from ...transports.links.zmq_channel import HubSide
from ..config import HostSettings


def remote_side(hosts: HostSettings) -> HubSide | None:
    """Where engines of other machines reach a frontend, with new keys; None if there are none.

    Raises `InvalidParameter` if too few ports of the range are free.
    """
    if not hosts.address:
        return None
    ports = free_ports(hosts.address, hosts.ports) if hosts.data_ports else (0, 0)
    where = f"[{hosts.address}]" if ":" in hosts.address else hosts.address
    input_endpoint, output_endpoint = (f"tcp://{where}:{port}" for port in ports)
    return HubSide(input_endpoint, output_endpoint, make_link_keys())


def free_ports(address: str, ports: Sequence[int]) -> tuple[int, int]:
    """Two ports of these that are free, as they are now: whichever comes between takes one.

    Raises `InvalidParameter`.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    free: list[int] = []
    for port in ports:
        with socket.socket(family) as probe, suppress(OSError):
            probe.bind((address, port))
            free.append(port)
        if len(free) == 2:
            return free[0], free[1]
    raise InvalidParameter("data_ports", f"has less than two that are free at {address}")
