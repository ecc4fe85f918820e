"""The outbox loses nothing, keeps order in a lane, merges deltas, and is fair between lanes."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.limits import SocketLimits
from triolet.api.outbox import Outbox
from triolet.api.responses import DELTA, Event


def delta(text: str, number: int) -> Event:
    return {"type": DELTA, "sequence_number": number, "delta": text}


def done(number: int) -> Event:
    return {"type": "response.completed", "sequence_number": number}


def taken(outbox: Outbox) -> list[Event]:
    return [msgspec.json.decode(text) for text in outbox.take()]


def test_waiting_deltas_of_a_lane_are_merged() -> None:
    outbox = Outbox(SocketLimits())
    outbox.put("a", delta("x", 4))
    outbox.put("b", delta("1", 4))
    outbox.put("a", delta("y", 5))
    outbox.put("a", done(9))
    assert outbox.is_waiting("a")
    events = taken(outbox)
    assert events == [
        {**delta("xy", 5), "stream_id": "a"},
        {**done(9), "stream_id": "a"},
        {**delta("1", 4), "stream_id": "b"},
    ]
    assert outbox.deltas_merged == 1
    assert not outbox
    assert not outbox.is_waiting("a")


def test_a_lane_is_full_by_its_delta_alone() -> None:
    outbox = Outbox(SocketLimits(lane_buffer_bytes_max=3))
    outbox.put("a", delta("xx", 4))
    assert not outbox.is_full("a")
    outbox.put("a", delta("x", 5))
    assert outbox.is_full("a")
    assert not outbox.is_full("b")
    taken(outbox)
    assert not outbox.is_full("a")


def test_a_burst_is_bounded_and_lanes_take_turns() -> None:
    outbox = Outbox(SocketLimits(burst_bytes_max=150))
    for name in ("a", "b"):
        for number in range(4):
            outbox.put(name, done(number))
    order = []
    while outbox:
        burst = taken(outbox)
        assert 1 <= len(burst) <= 3
        order += [event["stream_id"] for event in burst]
    assert order == ["a"] * 4 + ["b"] * 4


def test_notices_go_first_and_are_bounded() -> None:
    outbox = Outbox(SocketLimits(waiting_errors_max=2))
    outbox.put(None, done(1))
    assert outbox.put_notice({"type": "error"})
    assert outbox.put_notice({"type": "error"})
    assert not outbox.put_notice({"type": "error"})
    assert [event["type"] for event in taken(outbox)] == ["error", "error", "response.completed"]


operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("ab"), st.text(alphabet="xyz", min_size=1, max_size=3)),
        st.just(("take", "")),
        st.tuples(st.sampled_from("ab"), st.just("")),
    ),
    max_size=40,
)


@given(operations)
def test_what_a_lane_says_does_not_depend_on_when_it_is_taken(
    events: list[tuple[str, str]],
) -> None:
    outbox = Outbox(SocketLimits(burst_bytes_max=200))
    said: dict[str, list[str]] = {"a": [], "b": []}
    heard: dict[str, list[str]] = {"a": [], "b": []}
    last: dict[str, int] = {"a": 0, "b": 0}

    def hear() -> None:
        for event in taken(outbox):
            lane, number = event["stream_id"], event["sequence_number"]
            assert isinstance(lane, str)
            assert isinstance(number, int)
            assert number > last[lane]
            last[lane] = number
            heard[lane] += list(str(event.get("delta", "|")))

    for count, (lane, text) in enumerate(events, 1):
        if lane == "take":
            hear()
        else:
            outbox.put(lane, delta(text, count) if text else done(count))
            said[lane] += list(text or "|")
        outbox.check_invariants()
    while outbox:
        hear()
    assert heard == said
