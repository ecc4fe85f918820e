"""The link machine: headers, its table, its deadlines, and the n-th fault of a network."""

import itertools
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.fuzz.doubles.link_faults import FaultKind, NthFault
from triolet.fuzz.doubles.link_pair import SETTINGS, LinkPair
from triolet.transports.links.link import (
    Decision,
    Deliver,
    Link,
    LinkState,
    OpenGeneration,
    ReportDown,
    ReportHeard,
    ReportSilent,
    ReportUp,
    Side,
    Transmit,
)
from triolet.transports.links.link_header import (
    HEADER_BYTES,
    FrameKind,
    Header,
    MalformedHeader,
    Mishap,
    decode_header,
)


def header(kind: FrameKind, generation: int, sequence: int = 0, acknowledged: int = 0) -> Header:
    return Header(kind, generation, sequence, acknowledged)


def spoke_up() -> Link:
    link = Link(Side.SPOKE, SETTINGS)
    link.open(0.0)
    link.handle_header(header(FrameKind.LINK_ACCEPT, 1), 0.0)
    return link


def hub_up() -> Link:
    link = Link(Side.HUB, SETTINGS)
    link.handle_header(header(FrameKind.LINK_UP, 1), 0.0)
    return link


# ---- the table


def test_a_spoke_opens_and_repeats_until_the_hub_has_answered() -> None:
    link = Link(Side.SPOKE, SETTINGS)
    link_up = Transmit(header(FrameKind.LINK_UP, 1))
    assert link.open(0.0) == (OpenGeneration(1), link_up)
    with pytest.raises(AssertionError):
        link.handle_send(0.0)
    times = []
    while link.next_deadline() < 5.0:
        times.append(now := link.next_deadline())
        assert link.handle_timeout(now) == (link_up,)
    assert times == pytest.approx([0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55, 4.55])
    assert link.handle_header(header(FrameKind.LINK_ACCEPT, 1), 5.0) == [ReportUp(1)]
    assert link.next_deadline() == math.inf, "an idle link has nothing to do"


def test_a_hub_answers_each_generation_and_each_repetition() -> None:
    link = Link(Side.HUB, SETTINGS)
    answer = Transmit(header(FrameKind.LINK_ACCEPT, 1))
    link_up = header(FrameKind.LINK_UP, 1)
    assert link.handle_header(link_up, 0.0) == [OpenGeneration(1), ReportUp(1), answer]
    assert link.handle_header(link_up, 0.0) == (answer,)
    link.handle_send(0.0)
    decisions = link.handle_header(header(FrameKind.LINK_UP, 3), 1.0)
    assert decisions == [
        ReportDown("the spoke opened generation 3"),
        OpenGeneration(3),
        ReportUp(3),
        Transmit(header(FrameKind.LINK_ACCEPT, 3)),
    ]
    assert link.handle_header(link_up, 1.0) == ()
    assert link.mishaps[Mishap.STALE] == 1
    assert link.next_deadline() == math.inf


def test_the_first_data_is_as_good_as_the_answer() -> None:
    link = Link(Side.SPOKE, SETTINGS)
    link.open(0.0)
    decisions = link.handle_header(header(FrameKind.DATA, 1, 1), 0.0)
    assert decisions == [ReportUp(1), Deliver()]


def test_data_is_delivered_in_order_and_duplicates_are_dropped() -> None:
    link = spoke_up()
    assert link.handle_header(header(FrameKind.DATA, 1, 1), 0.0) == (Deliver(),)
    assert link.handle_header(header(FrameKind.DATA, 1, 1), 0.0) == ()
    assert link.handle_header(header(FrameKind.DATA, 1, 2), 0.0) == (Deliver(),)
    assert link.handle_header(header(FrameKind.DATA, 1, 1), 0.0) == ()
    assert link.mishaps[Mishap.DUPLICATE] == 2


@pytest.mark.parametrize(
    ("kind", "sequence"), [(FrameKind.DATA, 2), (FrameKind.ACK, 1), (FrameKind.PROBE, 1)]
)
def test_a_gap_makes_the_spoke_open_the_next_generation(kind: FrameKind, sequence: int) -> None:
    link = spoke_up()
    decisions = link.handle_header(header(kind, 1, sequence), 10.0)
    reason = f"gap: number {sequence} came instead of {int(kind is FrameKind.DATA)}"
    link_up = Transmit(header(FrameKind.LINK_UP, 2))
    assert list(decisions) == [ReportDown(reason), OpenGeneration(2), link_up]
    assert link.handle_header(header(FrameKind.DATA, 1, 1), 10.0) == ()
    assert link.mishaps[Mishap.GAP] == 1


def test_a_gap_makes_the_hub_ask_until_a_later_generation_comes() -> None:
    link = hub_up()
    reset = Transmit(header(FrameKind.LINK_RESET, 1))
    decisions = link.handle_header(header(FrameKind.DATA, 1, 2), 0.0)
    assert decisions == [ReportDown("gap: number 2 came instead of 1"), reset]
    with pytest.raises(AssertionError):
        link.handle_send(0.0)
    assert link.handle_timeout(0.05) == (reset,)
    assert link.handle_header(header(FrameKind.DATA, 1, 1), 0.1) == ()
    assert link.handle_header(header(FrameKind.LINK_UP, 1), 0.1) == ()
    assert link.handle_broken(1, "again", 0.1) == ()
    assert ReportUp(2) in link.handle_header(header(FrameKind.LINK_UP, 2), 0.2)
    assert link.next_deadline() == math.inf


def test_a_spoke_that_speaks_in_a_generation_that_is_over_is_asked_at_once() -> None:
    link = hub_up()
    stale = header(FrameKind.DATA, 1, 1)
    reset = Transmit(header(FrameKind.LINK_RESET, 1))
    assert reset in link.handle_broken(1, "it is not connected", 0.0)
    assert link.handle_header(stale, 0.01) == (), "the next repetition is near"
    asked = [at for at, _ in fire(link, 2.0)]
    assert asked[-1] - asked[-2] > 0.5, "repetitions have become rare"
    assert link.handle_header(stale, 2.0) == (reset,)
    assert link.handle_header(stale, 2.01) == ()
    assert link.next_deadline() == pytest.approx(2.0 + link.settings.repeat_delay_s)
    older = header(FrameKind.DATA, 0, 1)
    assert link.handle_header(older, 2.02) == ()
    link.check_invariants()


def test_a_reset_makes_the_spoke_open_the_next_generation_once() -> None:
    link = spoke_up()
    reset = header(FrameKind.LINK_RESET, 1)
    assert OpenGeneration(2) in link.handle_header(reset, 10.0)
    assert link.handle_header(reset, 10.0) == ()
    assert link.generation == 2


def test_broken_is_about_one_generation() -> None:
    link = hub_up()
    assert link.handle_broken(0, "an older one", 0.0) == ()
    assert ReportDown("it is not connected") in link.handle_broken(1, "it is not connected", 0.0)


def test_acknowledgements_go_alone_after_some_messages_or_some_time() -> None:
    link = spoke_up()
    for number in (1, 2):
        link.handle_header(header(FrameKind.DATA, 1, number), 1.0)
    third = link.handle_header(header(FrameKind.DATA, 1, 3), 1.0)
    assert third == (Deliver(), Transmit(header(FrameKind.ACK, 1, 0, 3)))
    assert link.next_deadline() == math.inf
    link.handle_header(header(FrameKind.DATA, 1, 4), 2.0)
    assert link.next_deadline() == 2.0 + SETTINGS.ack_delay_s
    assert link.handle_timeout(2.0) == ()
    assert link.handle_timeout(3.0) == (Transmit(header(FrameKind.ACK, 1, 0, 4)),)
    link.handle_header(header(FrameKind.DATA, 1, 5), 4.0)
    assert link.handle_send(4.0) == header(FrameKind.DATA, 1, 1, 5)
    link.handle_header(header(FrameKind.ACK, 1, 5, 1), 4.0)
    assert link.next_deadline() == math.inf, "DATA acknowledges, too"


def test_a_lost_tail_is_found_by_a_probe() -> None:
    sender, receiver = hub_up(), spoke_up()
    sender.handle_send(0.0)  # and it is lost
    assert sender.next_deadline() == SETTINGS.probe_delay_s
    (decision,) = sender.handle_timeout(SETTINGS.probe_delay_s)
    assert decision == Transmit(header(FrameKind.PROBE, 1, 1))
    assert isinstance(decision, Transmit)
    assert OpenGeneration(2) in receiver.handle_header(decision.header, 1.0)


def test_what_data_acknowledges_is_not_probed() -> None:
    link = hub_up()
    link.handle_send(1.0)
    link.handle_send(1.0)
    link.handle_header(header(FrameKind.DATA, 1, 1, acknowledged=2), 1.0)
    (ack,) = link.handle_timeout(link.next_deadline())
    assert ack == Transmit(header(FrameKind.ACK, 1, 2, 1))
    assert link.next_deadline() == math.inf


def test_a_probe_of_a_quiet_receiver_is_answered_at_once() -> None:
    link = spoke_up()
    link.handle_header(header(FrameKind.DATA, 1, 1), 0.0)
    answer = link.handle_header(header(FrameKind.PROBE, 1, 1), 0.0)
    assert answer == [Transmit(header(FrameKind.ACK, 1, 0, 1))]


def test_unanswered_probes_end_the_generation() -> None:
    link = hub_up()
    link.handle_send(0.0)
    sent: list[Decision] = []
    while link.state is LinkState.UP:
        sent.extend(link.handle_timeout(now := link.next_deadline()))
    assert now == pytest.approx(3.75)
    assert ReportDown("3 probes were not answered") in sent
    assert link.mishaps[Mishap.PROBE] == 3


def test_a_late_watcher_sends_one_probe_only() -> None:
    link = hub_up()
    link.handle_send(0.0)
    assert link.handle_timeout(1000.0) == (Transmit(header(FrameKind.PROBE, 1, 1)),)
    assert link.next_deadline() == 1000.5
    link.handle_header(header(FrameKind.ACK, 1, 0, 1), 1000.1)
    assert link.next_deadline() == math.inf


def test_generations_that_end_young_make_the_next_wait() -> None:
    link, now, rests = spoke_up(), 0.0, []
    for _ in range(10):
        link.handle_broken(link.generation, "the test breaks it", now)
        if link.state is LinkState.RESTING:
            rests.append(link.next_deadline() - now)
            link.handle_timeout(now := link.next_deadline())
        link.handle_header(header(FrameKind.LINK_ACCEPT, link.generation), now)
    assert rests == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0])
    link.handle_broken(link.generation, "after a calm time", now + 2 * SETTINGS.calm_after_s)
    assert link.state is LinkState.OPENING


@pytest.mark.parametrize("kind", list(FrameKind))
def test_a_closed_link_ignores_everything(kind: FrameKind) -> None:
    for link in (spoke_up(), hub_up()):
        link.close()
        assert link.handle_header(header(kind, 1, 1), 0.0) == ()
        assert link.handle_broken(1, "late", 0.0) == ()
        assert link.handle_timeout(10.0) == ()


@pytest.mark.parametrize(
    ("link", "insane"),
    [
        (spoke_up(), header(FrameKind.LINK_UP, 2)),
        (hub_up(), header(FrameKind.LINK_ACCEPT, 1)),
        (hub_up(), header(FrameKind.LINK_RESET, 1)),
        (hub_up(), header(FrameKind.DATA, 1, 1, acknowledged=1)),
        (hub_up(), header(FrameKind.ACK, 1, 0, acknowledged=1)),
    ],
)
def test_what_no_sane_peer_sends_is_counted(link: Link, insane: Header) -> None:
    assert link.handle_header(insane, 0.0) == ()
    assert link.is_up
    assert link.mishaps[Mishap.VIOLATION] == 1


# ---- two ends and a network between them


def run_conversation(fault: NthFault) -> LinkPair:
    """Both sides send in bursts with pauses between, so that every kind of frame passes."""
    pair = LinkPair([fault])
    for burst in range(4):
        for _ in range(20):
            for side in Side:
                pair.deliver(side)
        for number in range(5):
            if burst != 1:
                pair.send(Side.HUB)
            if burst != 2:
                pair.send(Side.SPOKE)
            if number % 2:
                pair.deliver(Side.HUB)
                pair.deliver(Side.SPOKE)
        pair.fire()
    pair.faults.clear()
    pair.settle()
    return pair


@pytest.mark.parametrize("kind", list(FaultKind))
@pytest.mark.parametrize("receiver", list(Side))
def test_the_nth_frame_is_dropped_doubled_or_delayed(kind: FaultKind, receiver: Side) -> None:
    for nth in itertools.count(1):
        fault = NthFault(kind, receiver, nth)
        pair = run_conversation(fault)
        generation = pair.ends[Side.HUB].generation
        if not fault.reached:
            assert nth > 20, "the conversation is long enough to mean something"
            assert generation == 1
            break
        if kind is FaultKind.DOUBLE:
            assert generation == 1, "a duplicate costs nothing"


_U64 = st.integers(0, 2**64 - 1)


@given(st.sampled_from(FrameKind), st.integers(0, 0xFFFFFFFF), _U64, _U64)
def test_headers_come_back(
    kind: FrameKind, generation: int, sequence: int, acknowledged: int
) -> None:
    header = Header(kind, generation, sequence, acknowledged)
    assert len(header.encode()) == HEADER_BYTES
    assert decode_header(header.encode()) == header
    frame = bytearray(b"\xff" * (HEADER_BYTES + 3))
    header.write_to(frame)
    assert frame == header.encode() + b"\xff" * 3
    assert decode_header(frame) == header, "what follows is not the header's"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "shorter than 21 bytes"),
        (bytes(HEADER_BYTES - 1), "shorter than 21 bytes"),
        (bytes(HEADER_BYTES), "unknown kind 0"),
        (b"\x63" + bytes(HEADER_BYTES - 1), "unknown kind 99"),
    ],
)
def test_what_is_no_header(frame: bytes, reason: str) -> None:
    with pytest.raises(MalformedHeader, match=reason):
        decode_header(frame)


# ---- silence, between machines

WATCHED = attrs.evolve(SETTINGS, silence_probe_s=0.25)


def fire(link: Link, until: float) -> list[tuple[float, Decision]]:
    """Let each deadline come that is due; who decided what, when."""
    found = []
    while (now := link.next_deadline()) <= until:
        found += [(now, decision) for decision in link.handle_timeout(now)]
    return found


def test_a_hub_asks_a_spoke_that_says_nothing_and_reports_its_silence_through_generations() -> None:
    link = Link(Side.HUB, WATCHED)
    link.handle_header(header(FrameKind.LINK_UP, 1), 0.0)
    asked = Transmit(header(FrameKind.PROBE, 1))
    silent = [(1.0, ReportSilent(1.0)), (1.0, asked)]
    assert fire(link, 1.0) == [(at, asked) for at in (0.25, 0.5, 0.75)] + silent
    link.handle_broken(1, "its carrier failed", 1.1)
    assert ReportHeard() not in [decision for _, decision in fire(link, 3.0)]
    link.handle_header(header(FrameKind.LINK_UP, 2), 3.0)
    *_, (at, last) = fire(link, 3.3)
    assert last == Transmit(header(FrameKind.PROBE, 2))
    assert at == pytest.approx(3.25)


def test_a_spoke_that_answers_is_never_silent_and_nobody_asks_for_a_hub() -> None:
    hub, spoke = Link(Side.HUB, WATCHED), Link(Side.SPOKE, WATCHED)
    spoke.open(0.0)
    hub.handle_header(header(FrameKind.LINK_UP, 1), 0.0)
    spoke.handle_header(header(FrameKind.LINK_ACCEPT, 1), 0.0)
    assert spoke.next_deadline() == math.inf
    for _ in range(20):
        now = hub.next_deadline()
        for decision in hub.handle_timeout(now):
            assert isinstance(decision, Transmit), decision
            (answer,) = spoke.handle_header(decision.header, now)
            assert isinstance(answer, Transmit)
            hub.handle_header(answer.header, now)


def test_a_link_that_is_closed_watches_nobody() -> None:
    link = Link(Side.HUB, WATCHED)
    link.handle_header(header(FrameKind.LINK_UP, 1), 0.0)
    link.close()
    assert link.next_deadline() == math.inf
