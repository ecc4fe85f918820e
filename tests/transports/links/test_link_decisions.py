"""The defaults of a link fit together, and the moves between states leave no trap."""

from triolet.transports.links.link_decisions import MOVES, LinkNotUp, LinkSettings, LinkState


def test_a_probe_comes_long_after_an_acknowledgement_of_its_own() -> None:
    settings = LinkSettings()
    assert settings.probe_delay_s >= 5 * settings.ack_delay_s
    assert settings.ack_messages * 10 < settings.unacknowledged_max


def test_every_state_but_closed_can_be_left_and_closed() -> None:
    assert set(MOVES) == set(LinkState)
    for state, followers in MOVES.items():
        assert (LinkState.CLOSED in followers) == (state is not LinkState.CLOSED)
        assert LinkState.WAITING not in followers


def test_the_error_is_a_sentence() -> None:
    assert str(LinkNotUp()) == "the link is not up"
