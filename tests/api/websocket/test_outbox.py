"""The outbox asks lanes in turn, bounds a burst, and sends notices first."""

import attrs
import msgspec

from triolet.api.limits import SocketLimits
from triolet.api.openai.response_events import Event
from triolet.api.websocket.outbox import OneEvent, Outbox


def done(number: int) -> Event:
    return {"type": "response.completed", "sequence_number": number}


@attrs.define(eq=False)
class Several:
    """Gives one event at a time."""

    events: list[Event]

    @property
    def is_ready(self) -> bool:
        return bool(self.events)

    def take(self, characters_max: int) -> list[Event]:
        return [self.events.pop(0)]


def taken(outbox: Outbox) -> list[Event]:
    outbox.check_invariants()
    return [msgspec.json.decode(text) for text in outbox.take()]


def test_a_lane_says_everything_once() -> None:
    outbox = Outbox(SocketLimits())
    source = Several([done(4), done(5)])
    outbox.mark_ready("a", source)
    outbox.mark_ready("a", source)
    assert outbox.is_waiting("a")
    assert taken(outbox) == [{**done(4), "stream_id": "a"}, {**done(5), "stream_id": "a"}]
    assert not outbox
    assert not outbox.is_waiting("a")


def test_a_burst_is_bounded_and_lanes_take_turns() -> None:
    outbox = Outbox(SocketLimits(burst_bytes_max=150))
    for name in ("a", "b"):
        outbox.mark_ready(name, Several([done(number) for number in range(4)]))
    order = []
    while outbox:
        burst = taken(outbox)
        assert 1 <= len(burst) <= 3
        order += [event["stream_id"] for event in burst]
    assert order == ["a", "b"] * 4


def test_notices_go_first_and_are_bounded() -> None:
    outbox = Outbox(SocketLimits(waiting_errors_max=2))
    outbox.mark_ready(None, OneEvent(done(1)))
    assert outbox.put_notice({"type": "error"})
    assert outbox.put_notice({"type": "error"})
    assert not outbox.put_notice({"type": "error"})
    assert [event["type"] for event in taken(outbox)] == ["error", "error", "response.completed"]
    assert taken(outbox) == []
