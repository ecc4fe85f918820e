"""The network does as it is told, and what arrives wrongly does not pass."""

import pytest

from triolet.fuzz.doubles.link_pair import LinkPair
from triolet.transports.links.link import Deliver, ReportUp, Side


def test_a_quiet_network_settles_with_both_ends_up() -> None:
    pair = LinkPair()
    pair.settle()
    pair.send(Side.HUB)
    pair.send(Side.SPOKE)
    pair.settle()
    assert pair.delivered == {(Side.HUB, 1): 1, (Side.SPOKE, 1): 1}


def test_a_broken_link_comes_up_again() -> None:
    pair = LinkPair()
    pair.settle()
    pair.break_link(Side.HUB)
    pair.settle()
    assert {link.generation for link in pair.ends.values()} == {2}


def test_what_arrives_wrongly_is_noticed() -> None:
    pair = LinkPair()
    pair.settle()
    with pytest.raises(AssertionError, match="in order, once"):
        pair.apply(Side.HUB, [Deliver()], number=2)
    with pytest.raises(AssertionError, match="alternate"):
        pair.apply(Side.HUB, [ReportUp(1)])


def test_a_loss_is_noticed_in_the_end() -> None:
    pair = LinkPair()
    pair.settle()
    pair.sent[Side.HUB, 1] = 5
    with pytest.raises(AssertionError):
        pair.settle()
