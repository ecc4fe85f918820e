"""Keys by which hosts may come: the cluster's, rotated ones, tickets; files that change nothing."""

import pathlib

import pytest

from triolet.runtime.errors import ControlCallRefused
from triolet.runtime.hosts.host_guests import HostGuests
from triolet.runtime.hosts.host_keys import make_cluster_keys, read_cluster_keys


def test_a_rotated_pair_is_let_in_until_it_is_retired() -> None:
    keys = make_cluster_keys()
    rotated = keys.rotated()
    guests = HostGuests(keys, lambda: rotated)
    ticket = guests.make_ticket("b")
    guests.reload()
    assert guests.let_in() == [rotated.hosts.public, keys.hosts.public, ticket.hosts.public]
    guests.read = rotated.retired
    guests.reload()
    assert guests.let_in() == [rotated.hosts.public, ticket.hosts.public]
    assert [guests.withdraw(name) for name in ("c", "b", "b")] == [False, True, False]
    assert guests.let_in() == [rotated.hosts.public]


def test_keys_that_cannot_be_read_or_are_another_heads_change_nothing() -> None:
    keys, missing = make_cluster_keys(), pathlib.Path("/nowhere/key")
    guests = HostGuests(keys)
    with pytest.raises(ControlCallRefused, match="of no file"):
        guests.reload()
    guests.read = make_cluster_keys
    with pytest.raises(ControlCallRefused, match="takes a new start"):
        guests.reload()
    guests.read = lambda: read_cluster_keys(missing, is_head=True)
    with pytest.raises(ControlCallRefused, match="cannot be read"):
        guests.reload()
    assert guests.keys == keys
