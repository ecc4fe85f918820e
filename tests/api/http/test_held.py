"""What a held stream says in its slot: a state, and what is appended to it."""

import attrs
import pytest

from triolet.api.connection_shares import MemoryBudget
from triolet.api.http.held import (
    BUDGET_BYTES,
    NOT_HELD,
    HeldStream,
    HttpState,
    SessionState,
    TurnState,
    decode_state,
    encode_position,
    encode_state,
    encode_turn,
    http_state_behind,
    session_with,
)
from triolet.transports.takeover.memory import SLOT_BYTES
from triolet.transports.takeover.slot import ConnectionSlot, EndForm, SlotRecord


@attrs.define(eq=False)
class CountedState:
    """A state that is described as often as it must be."""

    described: int = 0
    noted: bytes | None = b"note"
    ending: EndForm = EndForm.UNANSWERED

    def describe(self) -> bytes:
        self.described += 1
        return b"state %d" % self.described

    def note(self) -> bytes | None:
        return self.noted


@attrs.define(eq=False)
class Held:
    state: CountedState = attrs.field(factory=CountedState)
    stream: HeldStream = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        slot = ConnectionSlot(memoryview(bytearray(SLOT_BYTES)))
        self.stream = HeldStream(slot, MemoryBudget(BUDGET_BYTES), self.state)

    def write(self, data: bytes) -> None:
        self.stream.follow(data)
        self.stream.written += len(data)

    def record(self) -> SlotRecord:
        record = self.stream.slot.record()
        assert record is not None
        return record


@pytest.fixture
def held() -> Held:
    return Held()


def test_writes_of_a_stream_do_not_state_anew_what_follows(held: Held) -> None:
    held.write(b"head")
    held.write(b"one")
    held.write(b"two")
    assert held.record() == SlotRecord(
        0, b"head", b"state 1", 0, ((b"note", b"one"), (b"note", b"two"))
    )
    held.state.noted = None
    held.write(b"end")
    assert held.record() == SlotRecord(10, b"end", b"state 2", 0)


def test_what_was_said_before_it_is_written_is_said_once(held: Held) -> None:
    """Frames wait for a write while a message is taken."""
    held.write(b"head")
    held.stream.publish(b"waiting")
    held.write(b"waiting, and more")
    assert held.record() == SlotRecord(4, b"waiting, and more", b"state 3", 0)


def test_what_the_kernel_has_not_taken_stays_in_the_slot(held: Held) -> None:
    held.write(b"head")
    held.stream.unwritten = b"ad"
    held.stream.publish()
    held.write(b"one")
    assert held.record() == SlotRecord(2, b"ad", b"state 2", 0, ((b"note", b"one"),))


def test_input_that_is_not_kept_any_more_is_appended_as_well(held: Held) -> None:
    held.write(b"head")
    held.stream.received = held.stream.kept_from = 5
    held.write(b"one")
    assert held.record() == SlotRecord(0, b"head", b"state 1", 5, ((b"note", b"one"),))


def test_a_record_says_how_the_connection_can_be_ended_behind_it(held: Held) -> None:
    held.state.ending = EndForm.EVENTS
    held.write(b"head")
    held.write(b"one")
    assert held.record().ending is EndForm.EVENTS


def test_a_state_that_counts_no_more_is_stated_anew(held: Held) -> None:
    held.write(b"head")
    held.stream.refuse()
    assert held.record().state == NOT_HELD
    assert not held.stream.is_held
    held.write(b"one")
    assert held.record() == SlotRecord(4, b"one", b"state 2", 0)
    assert held.stream.is_held


def test_a_stream_gets_room_while_there_is_any(held: Held) -> None:
    for _ in range(500):
        held.write(bytes(100))
    assert held.state.described < 40
    held.stream.budget.taken = BUDGET_BYTES
    held.write(bytes(5000))
    assert held.record().state == NOT_HELD
    held.write(b"small again")
    assert held.record().chunk == b"small again"


def test_a_note_says_how_far_a_stream_is() -> None:
    begun = HttpState("resp_1", is_begun=True, position=3)
    assert decode_state(encode_state(begun)) == begun
    behind = http_state_behind(begun, encode_position("7.2"))
    assert behind == HttpState("resp_1", is_begun=True, position="7.2")


def test_a_note_brings_a_new_turn() -> None:
    """Behind those of its lane."""
    running, new = TurnState("a", "resp_1", b"", 3), TurnState("b", "resp_2", b"{}", granted=2)
    session = SessionState("me", names=["a"], turns=[running])
    assert decode_state(encode_state(session)) == session
    behind = session_with(session, encode_turn(new))
    assert behind == SessionState("me", names=["a", "b"], turns=[running, new])
    default = TurnState(None, "resp_3", b"{}")
    assert session_with(session, encode_turn(default)).names == ["a"]
