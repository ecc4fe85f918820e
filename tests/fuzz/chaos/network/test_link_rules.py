"""Each way between hosts passes, delays and drops frames as its rule says, and counts them."""

import math
import random

import pytest

from triolet.fuzz.chaos.network.link_rules import WAITING_BYTES_MAX, LinkRules, WayCounts

BROADCAST = 0xFF


@pytest.fixture
def links() -> LinkRules:
    return LinkRules((1, 2, 3), random.Random(7))


def frame(target: int, number: int = 0, size: int = 100) -> bytes:
    head = bytes([BROADCAST if target == BROADCAST else 2, 0, 0, 0, 0, target])
    return head + number.to_bytes(4, "big") + bytes(size - 10)


def numbers(arrived: list[tuple[int, bytes]]) -> list[int]:
    return [int.from_bytes(each[6:10], "big") for _, each in arrived]


def test_a_good_link_passes_each_frame_at_once_to_its_host_alone(links: LinkRules) -> None:
    links.handle_frame(1, frame(2), 5.0)
    assert links.take_due(5.0) == [(2, frame(2))]
    assert links.next_deadline() == math.inf
    assert links.counts()[1, 2] == WayCounts(passed=1)
    assert links.counts()[2, 1] == links.counts()[1, 3] == WayCounts()


def test_a_broadcast_reaches_all_others_and_a_stranger_no_host(links: LinkRules) -> None:
    links.handle_frame(2, frame(BROADCAST), 0.0)
    assert [target for target, _ in links.take_due(0.0)] == [1, 3]
    links.handle_frame(2, frame(9), 0.0)
    links.handle_frame(2, frame(2), 0.0)
    assert links.take_due(0.0) == []


def test_a_cut_of_one_way_lets_the_other_pass_and_heals(links: LinkRules) -> None:
    links.change((1, 2), is_cut=True)
    links.handle_frame(1, frame(2), 0.0)
    links.handle_frame(2, frame(1), 0.0)
    assert [target for target, _ in links.take_due(0.0)] == [1]
    assert links.counts()[1, 2] == WayCounts(dropped=1)
    links.change((1, 2), is_cut=False)
    links.handle_frame(1, frame(2), 1.0)
    assert [target for target, _ in links.take_due(1.0)] == [2]


def test_a_cut_loses_what_is_on_its_way(links: LinkRules) -> None:
    links.change((1, 2), delay_s=1.0)
    links.handle_frame(1, frame(2), 0.0)
    links.change((1, 2), is_cut=True)
    assert links.take_due(1.0) == []
    assert links.counts()[1, 2] == WayCounts(dropped=1)


def test_delay_and_jitter_keep_the_order_of_a_way(links: LinkRules) -> None:
    links.change((1, 2), delay_s=0.1, jitter_s=0.5)
    for number in range(100):
        links.handle_frame(1, frame(2, number), number / 100)
    assert 0.1 <= links.next_deadline() <= 0.6
    assert numbers(links.take_due(0.099)) == []
    early = numbers(links.take_due(1.0))
    assert 0 < len(early) < 100
    assert early + numbers(links.take_due(1.6)) == list(range(100))


def test_a_rate_spaces_frames_and_a_full_way_drops_the_newest(links: LinkRules) -> None:
    links.change((1, 2), bytes_per_s=1000.0)
    for number in range(3):
        links.handle_frame(1, frame(2, number), 10.0)
    assert numbers(links.take_due(10.1)) == [0]
    assert numbers(links.take_due(10.3)) == [1, 2]
    count = WAITING_BYTES_MAX // 1000 + 5
    for number in range(count):
        links.handle_frame(1, frame(2, number, 1000), 20.0)
    assert links.counts()[1, 2].dropped == 5
    assert numbers(links.take_due(math.inf)) == list(range(count - 5))
    links.handle_frame(1, frame(2), 2000.0)
    assert links.next_deadline() < math.inf


def test_loss_is_drawn_for_each_frame_and_the_same_from_the_same_seed() -> None:
    def lost() -> list[int]:
        links = LinkRules((1, 2), random.Random(3))
        links.change((1, 2), loss=0.2)
        for number in range(1000):
            links.handle_frame(1, frame(2, number), 0.0)
        return numbers(links.take_due(0.0))

    assert lost() == lost()
    assert 750 < len(lost()) < 850


def test_what_is_no_rule_is_refused_and_changes_nothing(links: LinkRules) -> None:
    for changes in ({"loss": 2.0}, {"delay_s": -1.0}, {"bytes_per_s": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            links.change((1, 2), **changes)
    with pytest.raises(TypeError):
        links.change((1, 2), speed=1.0)
    links.handle_frame(1, frame(2), 0.0)
    assert len(links.take_due(0.0)) == 1
