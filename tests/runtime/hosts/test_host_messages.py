"""Every message between head and hosts survives the codec; the times of a lease are checked."""

import pytest

from triolet.engine.control_messages import FrontendMembership
from triolet.nurseries.processes.watched import Watch
from triolet.runtime.control.calls import ControlCall, ControlQuestion
from triolet.runtime.hosts import host_messages
from triolet.runtime.hosts.host_messages import LeaseSettings
from triolet.runtime.hosts.host_plan import HOST_LINK
from triolet.transports.codec import Codec
from triolet.transports.links.link_keys import LinkKeys

from ..test_messages import MEMBERSHIP

JOIN = host_messages.Join(
    wire=1,
    version="0.1.0",
    name="b",
    incarnation=2**62,
    engines=4,
    model_hash="aa",
)
WELCOME = host_messages.Welcome(
    run_id="r",
    first_rank=4,
    first_epoch=8192,
    epochs=4096,
    settings=b"\x80",
    lease=LeaseSettings(lease_s=5.0),
    link_keys=LinkKeys(b"p" * 32, b"s" * 32),
)


def test_both_families_cross_whole() -> None:
    to_head: list[object] = [
        JOIN,
        host_messages.HostBeat(7, 5),
        host_messages.HostSnapshot(3, MEMBERSHIP),
        host_messages.HostDeath({b"c": 9}, 8193),
        host_messages.HostPassed({b"c": 9}),
        host_messages.OrderReply(4, "{}", "no such place", "no_place"),
        host_messages.HostEvent("engine 4: was killed", True, "engine 4", 9, "died", "was killed"),
        host_messages.HostFigures(process_id=7, rss_bytes=2**26, cpu_s=1.5, round_trip_s=0.001),
        host_messages.HostNews(["{}"]),
        host_messages.EpochsWanted(),
        host_messages.Leave("is drained"),
    ]
    to_host: list[object] = [
        WELCOME,
        host_messages.JoinRefused("another model"),
        host_messages.HeadBeat(7, 5, 0.25),
        FrontendMembership(1, [], [0]),
        host_messages.HostOrder(4, ControlQuestion(ControlCall.PLACES)),
        host_messages.Excused([8193]),
        host_messages.MoreEpochs(12288, 4096),
        Watch(3),
        host_messages.NewsTaken(),
    ]
    for kinds, sent in (
        (host_messages.HOST_TO_HEAD, to_head),
        (host_messages.HEAD_TO_HOST, to_host),
    ):
        codec = Codec(*kinds)
        assert [codec.decode(codec.encode(message)) for message in sent] == sent
        assert {type(message) for message in sent} == set(kinds)


def test_a_secret_is_in_no_text() -> None:
    assert "ssss" not in repr(WELCOME)


@pytest.mark.parametrize(
    "times", [{"suspect_s": 0.05}, {"suspect_max_s": 3.0}, {"lease_s": 2.0}, {"beat_s": 0.0}]
)
def test_times_that_contradict_each_other_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        LeaseSettings(**times)


def test_acknowledgements_go_with_beats_before_anything_is_asked_for() -> None:
    assert LeaseSettings().beat_s < HOST_LINK.link.ack_delay_s < HOST_LINK.link.probe_delay_s
