"""The watch over a peer: when it asks, whom it calls silent; being late itself proves nothing."""

import math

import pytest

from triolet.transports.links.link_header import LinkSettings
from triolet.transports.links.silence import SilenceFinding, SilenceWatch

SETTINGS = LinkSettings(silence_probe_s=0.25, silence_probes_max=3)


def watch() -> SilenceWatch:
    made = SilenceWatch(SETTINGS)
    made.heard_at = 0.0
    made.begin(0.0)
    return made


def test_a_peer_that_answers_nothing_is_asked_three_times_and_silent_after_a_second() -> None:
    silence, found = watch(), []
    while silence.look_at < 1.4:
        found.append((silence.look_at, silence.look(silence.look_at)))
    asked = [(0.25, SilenceFinding.ASK), (0.5, SilenceFinding.ASK), (0.75, SilenceFinding.ASK)]
    assert found == [*asked, (1.0, SilenceFinding.SILENT), (1.25, SilenceFinding.ASK)]
    assert silence.silent_s == 1.25
    silence.heard_at = 1.3
    assert silence.look(1.5) is SilenceFinding.HEARD
    assert silence.look_at == pytest.approx(1.55)
    assert silence.look(1.6) is SilenceFinding.ASK


def test_who_speaks_is_never_asked() -> None:
    silence = watch()
    for turn in range(1, 100):
        silence.heard_at = turn * 0.1
        if silence.look_at <= turn * 0.1:
            assert silence.look(turn * 0.1) is SilenceFinding.NEWS


def test_a_look_that_comes_a_minute_late_asks_once_and_judges_nobody() -> None:
    silence = watch()
    assert silence.look(60.0) is SilenceFinding.ASK
    silence.heard_at = 60.1  # what had waited, or the answer
    assert silence.look(60.25) is SilenceFinding.NEWS
    assert [silence.look(at) for at in (60.35, 60.6, 60.85)] == [SilenceFinding.ASK] * 3
    assert not silence.is_silent


def test_on_one_host_nobody_is_watched() -> None:
    silence = SilenceWatch(LinkSettings())
    silence.begin(0.0)
    assert silence.look_at == math.inf
