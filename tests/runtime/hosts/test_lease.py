"""Both ends of a lease: the host stops first, whatever the network does; silence is no death."""

import math

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.runtime.hosts.host_messages import HeadBeat, HostBeat, LeaseSettings
from triolet.runtime.hosts.lease import HostLease, HostState, HostWatch

from .lease_link import LeaseLink, Network

UP, SILENT, LOST = HostState.UP, HostState.SILENT, HostState.LOST
CUTS = st.lists(
    st.tuples(st.floats(0.5, 8.0), st.floats(0.1, 9.0)).map(lambda cut: (cut[0], sum(cut))),
    max_size=2,
).map(tuple)
NETWORKS = st.builds(
    Network,
    delay_s=st.sampled_from([0.001, 0.05, 0.4, 1.5]),
    jitter_s=st.sampled_from([0.0, 0.05, 0.5, 3.0]),
    loss=st.sampled_from([0.0, 0.05, 0.5]),
    doubling=st.sampled_from([0.0, 0.2]),
    cuts=CUTS,
)
RATES = st.sampled_from([(1.0, 1.0), (1.0, 1.05), (1.05, 1.0), (0.97, 1.018), (1.018, 0.97)])
LINKS = st.builds(
    LeaseLink,
    to_head=NETWORKS,
    to_host=NETWORKS,
    rates=RATES,
    pauses=CUTS,
    seed=st.integers(0, 2**32),
)


def judge(link: LeaseLink) -> None:
    """The host has stopped when the head says that it is lost."""
    if link.states and link.states[-1][1] is LOST:
        lost_at = link.states[-1][0]
        assert link.lease.is_over(link.host_clock(lost_at)), "it computes, and is given up"


@settings(max_examples=150, deadline=None)
@given(LINKS)
def test_the_lease_of_a_host_ends_before_its_head_gives_it_up(link: LeaseLink) -> None:
    link.run(25.0)
    judge(link)


@attrs.define(eq=False)
class _FromReceiving(HostLease):
    def handle_beat(self, beat: HeadBeat, now: float) -> bool:
        if beat.echoed > 0 and not self.is_over(now):
            self.ends_s = now + self.settings.lease_s
        return super().handle_beat(beat, now)


@attrs.define(eq=False)
class _WithoutMargin(HostWatch):
    @property
    def lease_s(self) -> float:
        return self.settings.lease_s


@attrs.define(eq=False)
class _FromConfirmed(HostWatch):
    """The lease counts from the last beat whose echo is known to have arrived."""

    _received: dict[int, float] = attrs.field(factory=dict, init=False)

    def handle_beat(self, beat: HostBeat, now: float) -> HostState | None:
        self._received.setdefault(beat.number, now)
        self._received[0] = self._received.get(beat.echoed, 0.0)
        return super().handle_beat(beat, now)

    def next_deadline(self) -> float:
        if self.state is SILENT:
            return self._received[0] + self.lease_s
        return super().next_deadline()


@pytest.mark.parametrize(
    "link",
    [
        LeaseLink(
            make_lease=_FromReceiving,
            to_host=Network(delay_s=1.0),
            to_head=Network(cuts=((5, 99),)),
        ),
        LeaseLink(make_watch=_WithoutMargin, rates=(1.0, 1.05), to_head=Network(cuts=((5, 99),))),
        LeaseLink(
            make_watch=_FromConfirmed,
            to_head=Network(delay_s=0.01, cuts=((5, 99),)),
            to_host=Network(delay_s=1.9),
            settings=LeaseSettings(suspect_s=2.5),
        ),
    ],
)
def test_a_lease_that_is_counted_wrongly_is_found(link: LeaseLink) -> None:
    link.run(25.0)
    with pytest.raises(AssertionError, match="it computes, and is given up"):
        judge(link)


def test_a_quiet_link_is_up_for_ever() -> None:
    link = LeaseLink(to_head=Network(jitter_s=0.3), to_host=Network(jitter_s=0.3, delay_s=0.2))
    link.run(60.0)
    assert link.states == []
    assert link.over_at is None


def test_a_cut_is_noticed_after_a_second_and_is_the_end_after_the_lease() -> None:
    cuts = ((5.0, math.inf),)
    link = LeaseLink(to_head=Network(cuts=cuts), to_host=Network(cuts=cuts))
    link.run(20.0)
    assert link.seen() == [SILENT, LOST]
    assert [at for at, _ in link.states] == pytest.approx([6.0, 8.25], abs=0.13)
    assert link.over_at == pytest.approx(7.95, abs=0.15)


@pytest.mark.parametrize("cut_s", [1.3, 2.0, 2.7])
def test_after_a_short_cut_the_host_is_up_again(cut_s: float) -> None:
    cuts = ((5.0, 5.0 + cut_s),)
    link = LeaseLink(to_head=Network(cuts=cuts), to_host=Network(cuts=cuts))
    link.run(30.0)
    assert link.seen() == [SILENT, UP]
    assert link.states[1][0] == pytest.approx(5.0 + cut_s, abs=0.25)
    assert link.over_at is None


def test_a_host_that_stood_still_is_up_again() -> None:
    link = LeaseLink(pauses=((5.0, 7.5),))
    link.run(30.0)
    assert link.seen() == [SILENT, UP]


def test_a_host_that_stood_still_for_longer_than_its_lease_has_none() -> None:
    link = LeaseLink(pauses=((5.0, 9.5),))
    link.run(30.0)
    assert link.seen() == [SILENT, LOST]
    assert link.lease.is_over(link.host_clock(9.5))


def test_a_cut_of_the_way_to_the_head_is_the_same_as_one_of_both() -> None:
    link = LeaseLink(to_head=Network(cuts=((5.0, math.inf),)))
    link.run(20.0)
    assert link.seen() == [SILENT, LOST]
    assert [at for at, _ in link.states] == pytest.approx([6.0, 8.25], abs=0.13)


def test_a_cut_of_the_way_to_the_host_is_noticed_by_what_its_beats_do_not_confirm() -> None:
    link = LeaseLink(to_host=Network(cuts=((5.0, math.inf),)))
    link.run(20.0)
    assert link.seen() == [SILENT, LOST]
    assert link.states[0][0] == pytest.approx(6.0, abs=0.15)
    assert link.over_at == pytest.approx(7.95, abs=0.15)
    assert link.states[1][0] == pytest.approx(9.2, abs=0.2)


def test_a_short_cut_of_one_way_heals() -> None:
    cut = Network(cuts=((5.0, 7.0),))
    for link in (LeaseLink(to_head=cut), LeaseLink(to_host=cut)):
        link.run(30.0)
        assert link.seen() == [SILENT, UP]


def test_on_an_irregular_link_suspicion_takes_longer_up_to_a_limit() -> None:
    watch, now = HostWatch(LeaseSettings(), 0.0), 0.0
    for number in range(1, 40):
        now += 0.25 if number in (10, 20) else 0.1
        watch.handle_beat(HostBeat(number, watch.next_beat(now).echoed), now)
    assert watch.suspect_s == pytest.approx(2.0)
    for number in range(40, 43):
        now += 0.9
        watch.handle_beat(HostBeat(number, watch.next_beat(now).echoed), now)
    assert watch.suspect_s == 2.5


# ---- connections, and who knows of the host otherwise


def beating(until: float = 1.0) -> HostWatch:
    """Watch of a host that has beaten up to this time."""
    watch = HostWatch(LeaseSettings(), 0.0)
    for number in range(1, round(until * 10) + 1):
        watch.handle_beat(HostBeat(number, watch.next_beat(number / 10).echoed), number / 10)
    return watch


def test_a_reset_while_beats_came_is_the_end_unless_the_host_comes_again() -> None:
    watch = beating()
    assert watch.handle_down(1.05) is None
    assert watch.next_deadline() == pytest.approx(1.35)
    watch.handle_up()
    assert watch.handle_timeout(1.4) is None
    assert watch.handle_down(1.4) is None
    assert watch.handle_timeout(1.7) is LOST
    assert watch.next_deadline() == math.inf


def test_a_connection_that_ends_after_a_silence_proves_nothing() -> None:
    watch = beating()
    assert watch.handle_down(1.75) is None
    assert watch.handle_timeout(2.05) is SILENT
    assert watch.silent_since == 1.0
    watch.handle_up()
    assert watch.handle_beat(HostBeat(11, 10), 2.5) is UP
    assert watch.silent_since is None


def test_a_connection_that_a_host_ends_which_hears_nothing_proves_nothing() -> None:
    watch = beating()
    for number in range(11, 20):
        assert watch.handle_beat(HostBeat(number, 9), number / 10) is None
    assert watch.handle_down(1.92) is None
    assert watch.handle_timeout(2.05) is SILENT
    watch.handle_up()
    assert watch.handle_beat(HostBeat(20, 19), 3.0) is UP


def test_who_asks_again_before_its_first_beat_is_watched_anew() -> None:
    watch = HostWatch(LeaseSettings(), 0.0)
    assert watch.handle_timeout(1.05) is SILENT
    assert watch.handle_join(2.9) is UP
    assert watch.handle_timeout(3.5) is None
    assert watch.next_deadline() == pytest.approx(3.9)
    assert watch.handle_beat(HostBeat(1, 0), 3.6) is None
    assert watch.handle_join(3.8) is None
    assert watch.next_deadline() == pytest.approx(3.9)


def test_who_started_the_host_is_believed_if_nothing_is_heard_of_it() -> None:
    watch = beating()
    assert watch.handle_gone(1.0) is None
    assert watch.handle_timeout(2.01) is LOST
    watch = beating()
    assert watch.handle_timeout(2.01) is SILENT
    assert watch.handle_gone(2.2) is LOST
    watch = beating()
    assert watch.handle_gone(1.0) is None
    assert watch.handle_down(1.1) is LOST
    watch = beating()
    assert watch.handle_down(1.1) is None
    assert watch.handle_gone(1.2) is LOST


def test_who_says_that_a_host_is_gone_which_beats_on_is_not_believed_later() -> None:
    watch = beating()
    assert watch.handle_gone(1.0) is None
    for number in range(11, 30):
        watch.handle_beat(HostBeat(number, watch.next_beat(number / 10).echoed), number / 10)
    assert watch.handle_timeout(3.91) is SILENT


def test_a_lost_host_stays_lost() -> None:
    watch = beating()
    watch.handle_down(1.05)
    assert watch.handle_timeout(1.4) is LOST
    assert watch.handle_beat(HostBeat(11, 10), 1.45) is None
    assert watch.handle_gone(1.5) is watch.handle_down(1.5) is watch.handle_timeout(9.0) is None
    watch.handle_up()
    assert watch.state is LOST


def test_a_look_that_comes_late_lets_what_waits_be_read_first() -> None:
    watch = beating()
    assert watch.handle_timeout(60.0) is None
    assert watch.next_deadline() == pytest.approx(60.1)
    assert watch.handle_beat(HostBeat(11, 10), 60.01) is None
    assert watch.handle_timeout(60.1) is None
    assert watch.state is UP
    watch = beating()
    assert [watch.handle_timeout(at) for at in (60.0, 60.1, 60.2)] == [None, SILENT, LOST]


def test_what_is_said_twice_late_or_of_nothing_changes_nothing() -> None:
    watch = beating()
    assert watch.handle_beat(HostBeat(10, 9), 5.0) is None
    assert watch.handle_beat(HostBeat(11, 12), 5.0) is None  # of an echo that was none
    assert watch.handle_timeout(2.05) is SILENT
    lease = HostLease(LeaseSettings(), 0.0)
    beats = [lease.handle_sent(at / 10) for at in range(10)]
    lease.handle_beat(HeadBeat(1, beats[-1].number), 1.0)
    lease.handle_beat(HeadBeat(1, beats[0].number), 1.1)
    lease.handle_beat(HeadBeat(1, 99), 1.2)
    assert lease.ends_s == pytest.approx(3.9)


def test_a_lease_that_is_over_stays_over() -> None:
    lease = HostLease(LeaseSettings(), 0.0)
    beat = lease.handle_sent(2.9)
    assert not lease.is_over(2.99)
    assert lease.is_over(3.0)
    lease.handle_beat(HeadBeat(1, beat.number), 3.0)
    assert lease.is_over(3.0)


def test_sendings_are_remembered_for_a_lease_and_no_longer() -> None:
    lease = HostLease(LeaseSettings(), 0.0)
    for number in range(5000):
        lease.handle_sent(number / 1e4)
        lease.check_invariants()


def test_a_beat_after_a_silence_is_to_be_confirmed_at_once() -> None:
    lease = HostLease(LeaseSettings(), 0.0)
    assert not lease.handle_beat(HeadBeat(1, 0), 0.1)
    lease.handle_sent(0.15)
    assert not lease.handle_beat(HeadBeat(2, 1), 0.2)
    assert lease.handle_beat(HeadBeat(3, 1), 2.5), "there is no newer echo, and the head waits"
    assert not lease.handle_beat(HeadBeat(4, 1), 2.6)
    assert not lease.handle_beat(HeadBeat(5, 1), 4.0), "it is over"


def test_a_round_trip_is_of_the_way_alone_and_the_quickest_counts() -> None:
    lease, watch = HostLease(LeaseSettings(), 0.0), HostWatch(LeaseSettings(), 100.0)
    assert lease.take_round_trip() == 0.0
    for number, (way_s, held_s) in enumerate([(0.02, 0.07), (0.01, 0.03), (0.05, 0.0)]):
        sent_s = number / 10
        watch.handle_beat(lease.handle_sent(sent_s), 100.0 + sent_s + way_s)
        beat = watch.next_beat(100.0 + sent_s + way_s + held_s)
        lease.handle_beat(beat, sent_s + 2 * way_s + held_s)
    assert lease.take_round_trip() == pytest.approx(0.02)
    assert lease.take_round_trip() == pytest.approx(0.02), "there is no newer one"
    watch.handle_beat(lease.handle_sent(0.5), 100.51)
    lease.handle_beat(watch.next_beat(100.51), 0.54)
    assert lease.take_round_trip() == pytest.approx(0.04)


def test_beats_that_do_not_come_are_counted_and_each_one_prolongs_the_lease() -> None:
    watch = beating()
    lost = watch.beats_lost
    left_s = watch.lease_left_s(1.0)
    watch.handle_beat(HostBeat(14, 10), 1.4)
    watch.handle_beat(HostBeat(12, 10), 1.5)  # late: it was counted
    assert watch.beats_lost - lost == 3
    assert watch.lease_left_s(1.4) == pytest.approx(left_s)
    assert watch.lease_left_s(1.4) == pytest.approx(watch.lease_s)
    assert watch.lease_left_s(99.0) == 0.0
