"""Where other machines' engines reach a frontend: nowhere, anywhere, or at ports of a range."""

import socket

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.runtime.config import HostSettings
from triolet.runtime.hosts.remote_side import free_ports, remote_side


def test_without_other_machines_there_is_none() -> None:
    assert remote_side(HostSettings()) is None


@pytest.mark.parametrize(
    ("address", "endpoint"), [("127.0.0.1", "tcp://127.0.0.1:0"), ("::1", "tcp://[::1]:0")]
)
def test_any_port_will_do_unless_a_range_is_given(address: str, endpoint: str) -> None:
    side, other = (remote_side(HostSettings(advertise=address)) for _ in range(2))
    assert side is not None
    assert other is not None
    assert side.endpoints == (endpoint, endpoint)
    assert side.keys != other.keys


def test_ports_of_a_range_that_are_taken_are_passed_by() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = free_ports("127.0.0.1", range(port, port + 20))
        assert port not in found
        with pytest.raises(InvalidParameter, match="data_ports has less than two that are free"):
            free_ports("127.0.0.1", [port])


@pytest.mark.parametrize("ports", ["1", "5-5", "9-7", "0-5", "1-99999", "a-b"])
def test_what_is_no_range_is_refused(ports: str) -> None:
    with pytest.raises(InvalidParameter, match="data_ports must be LOW-HIGH"):
        HostSettings(data_ports=ports)


def test_an_address_is_one_of_a_machine() -> None:
    with pytest.raises(InvalidParameter, match="advertise must be an IP address of this machine"):
        HostSettings(advertise="head.example")
