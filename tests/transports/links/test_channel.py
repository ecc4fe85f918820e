"""The seam's own words; what channels do is in the contract suite."""

from triolet.transports.links.channel import Peer, PeerNotConnected


def test_peers_sort_by_role_rank_and_epoch_and_speak_for_themselves() -> None:
    peers = [Peer("engine", 1, 1), Peer("engine", 0, 2), Peer("engine", 0, 1)]
    assert sorted(peers) == [peers[2], peers[1], peers[0]]
    assert str(PeerNotConnected(peers[0])) == "engine 1 (epoch 1) is not connected"
