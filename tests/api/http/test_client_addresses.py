"""Addresses are counted one by one; this machine's own are not told apart."""

import pytest

from triolet.api.limits import LOCAL, ClientAddresses, address_of


class FakeSocket:
    """Says what `getpeername` says."""

    def __init__(self, name: object) -> None:
        self.name = name

    def getpeername(self) -> object:
        if isinstance(self.name, OSError):
            raise self.name
        return self.name


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("203.0.113.9", 50000), "203.0.113.9"),
        (("127.0.0.1", 50000), LOCAL),
        (("127.3.2.1", 50000), LOCAL),
        (("::1", 50000, 0, 0), LOCAL),
        (("::ffff:127.0.0.1", 50000, 0, 0), LOCAL),
        (("::ffff:203.0.113.9", 50000, 0, 0), "203.0.113.9"),
        (("2001:db8:1:2:3:4:5:6", 50000, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 50000, 0, 2), "fe80::/64"),
        ("", LOCAL),
        (b"\x00abstract", LOCAL),
        ((), LOCAL),
        (("no address", 1), LOCAL),
        (OSError(107, "not connected"), LOCAL),
    ],
    ids=str,
)
def test_what_a_connection_is_counted_for(name: object, address: str) -> None:
    assert address_of(FakeSocket(name)) == address


def test_one_address_is_full_alone_and_has_room_again() -> None:
    addresses = ClientAddresses(per_address_max=2)
    with addresses.connection("a"):
        with addresses.connection("a"), addresses.connection("b"):
            assert addresses.is_full("a")
            assert not addresses.is_full("b")
            addresses.check_invariants()
        assert not addresses.is_full("a")
    addresses.check_invariants()


def test_this_machine_is_never_full() -> None:
    addresses = ClientAddresses(per_address_max=1)
    with addresses.connection(LOCAL), addresses.connection(LOCAL):
        assert not addresses.is_full(LOCAL)
