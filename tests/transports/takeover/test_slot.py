"""A connection slot against what a killed owner had written and read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.transports.takeover.memory import SLOT_BYTES
from triolet.transports.takeover.slot import (
    INPUT_BYTES,
    RECORD_BYTES_MAX,
    ConnectionSlot,
    SlotRecord,
)


@pytest.fixture(scope="module")
def memory() -> memoryview:
    return memoryview(bytearray(SLOT_BYTES))


@pytest.fixture
def slot(memory: memoryview) -> ConnectionSlot:
    memory[:4096] = bytes(4096)
    return ConnectionSlot(memory)


def receive(slot: ConnectionSlot, received: int, data: bytes) -> int:
    """As a socket would be read: into the room that there is; the count of all bytes then."""
    while data:
        room = slot.input_room(received, len(data))
        assert room, "no room for what must be kept"
        room[:] = data[: len(room)]
        received, data = received + len(room), data[len(room) :]
    return received


def test_a_new_slot_says_nothing(slot: ConnectionSlot) -> None:
    assert slot.record() is None
    assert slot.kept_input(0) == b""
    receive(slot, 0, b"GET /")
    assert ConnectionSlot.found(slot.memory).kept_input(5) == b"GET /"


@pytest.mark.parametrize("size", [0, 1, 1800, 4000, RECORD_BYTES_MAX - 5])
def test_the_latest_record_counts(slot: ConnectionSlot, size: int) -> None:
    chunk = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert slot.publish(0, b"before", b"first", kept_from=0, received=0)
    assert slot.publish(5, b"state", chunk, kept_from=0, received=0)
    assert ConnectionSlot.found(slot.memory).record() == SlotRecord(5, chunk, b"state", 0)


def test_what_is_too_large_changes_nothing(slot: ConnectionSlot) -> None:
    slot.publish(0, b"before", b"first", kept_from=0, received=0)
    assert not slot.publish(5, b"state", bytes(RECORD_BYTES_MAX), kept_from=0, received=0)
    found = ConnectionSlot.found(slot.memory).record()
    assert found is not None
    assert found.chunk == b"first"


def test_an_owner_that_dies_while_it_stores_leaves_the_record_before(slot: ConnectionSlot) -> None:
    slot.publish(0, b"one", b"1", kept_from=0, received=0)
    slot.publish(1, b"two", b"2", kept_from=0, received=0)
    torn = bytes(slot.memory[8:4096])  # all but the word that publishes
    slot.publish(2, b"three", b"3", kept_from=0, received=0)
    after = bytes(slot.memory[8:4096])
    assert after != torn
    image = bytearray(SLOT_BYTES)
    image[:8] = (2 << 1).to_bytes(8, "little")
    for cut in range(0, 4088, 8):
        image[8:4096] = after[:cut] + torn[cut:]
        assert ConnectionSlot.found(memoryview(image)).record() == SlotRecord(1, b"2", b"two", 0)


def test_what_is_appended_follows_its_record(slot: ConnectionSlot) -> None:
    assert not slot.append(b"", b"before any record", kept_from=0)
    slot.publish(0, b"state", b"one", kept_from=0, received=0)
    assert slot.append(b"", b"two", kept_from=2)
    assert slot.append(b"3", memoryview(b"three"), kept_from=3)
    found = ConnectionSlot.found(slot.memory).record()
    assert found == SlotRecord(0, b"one", b"state", 3, ((b"", b"two"), (b"3", b"three")))
    assert found.output == b"onetwothree"
    for number in range(2):  # the other half, and this one anew
        slot.publish(11, b"state", b"%d" % number, kept_from=0, received=0)
        found = ConnectionSlot.found(slot.memory).record()
        assert found == SlotRecord(11, b"%d" % number, b"state", 0)


@pytest.mark.parametrize("room", [0, 3000])
def test_it_is_appended_to_until_there_is_no_room(slot: ConnectionSlot, room: int) -> None:
    slot.publish(0, b"state", b"", kept_from=0, received=0, room=room)
    count = 0
    while slot.append(b"note", bytes(100), kept_from=0):
        count += 1
    assert count == (room or 2016 - 37) // 120
    found = ConnectionSlot.found(slot.memory).record()
    assert found is not None
    assert len(found.appended) == count


def test_an_owner_that_dies_while_it_appends_leaves_what_was_before(slot: ConnectionSlot) -> None:
    slot.publish(0, b"state", b"one", kept_from=0, received=0)
    slot.append(b"1", b"two", kept_from=0)
    whole = ConnectionSlot.found(slot.memory).record()
    words = bytes(slot.memory[:64])
    slot.append(b"2", b"three", kept_from=0)
    slot.memory[:64] = words
    assert ConnectionSlot.found(slot.memory).record() == whole


def test_input_goes_round_and_is_kept_until_it_is_not_needed(slot: ConnectionSlot) -> None:
    received = receive(slot, 0, bytes(INPUT_BYTES - 3))
    slot.publish(0, b"s", b"", kept_from=INPUT_BYTES - 5, received=received)
    received = receive(slot, received, b"over the edge")
    found = ConnectionSlot.found(slot.memory)
    assert found.kept_input(received) == b"\0\0over the edge"
    assert not slot.input_room(INPUT_BYTES - 5 + INPUT_BYTES, 10)


def test_where_nothing_is_kept_the_ring_begins_anew(slot: ConnectionSlot) -> None:
    received = receive(slot, 0, b"a whole request")
    slot.publish(0, b"s", b"", kept_from=received, received=received)
    before = bytes(slot.memory[2**20 : 2**20 + 5])
    receive(slot, received, b"NEXT.")
    assert before == b"a who"
    assert bytes(slot.memory[2**20 : 2**20 + 5]) == b"NEXT."


@pytest.mark.parametrize("received", [-1, INPUT_BYTES + 1])
def test_counts_that_cannot_be_are_refused(slot: ConnectionSlot, received: int) -> None:
    with pytest.raises(ValueError, match="cannot keep"):
        slot.kept_input(received)


def test_a_slot_of_noise_is_refused(memory: memoryview) -> None:
    memory[:4096] = (2).to_bytes(8, "little") + b"\xff" * 4088
    with pytest.raises(ValueError, match="never written by an owner"):
        ConnectionSlot.found(memory)


def test_noise_behind_a_record_is_refused(slot: ConnectionSlot) -> None:
    slot.publish(0, b"state", b"", kept_from=0, received=0)
    place = slot._end
    slot.append(b"", bytes(8), kept_from=0)
    slot.memory[place + 8 : place + 16] = b"\xff" * 8
    with pytest.raises(ValueError, match="makes no sense"):
        ConnectionSlot.found(slot.memory).record()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.binary(max_size=3000)),
        st.tuples(st.just("append"), st.binary(max_size=300)),
        st.tuples(st.just("read"), st.binary(min_size=1, max_size=300)),
        st.tuples(st.just("use"), st.integers(0, 300)),
    ),
    max_size=30,
)


@given(STEPS, st.integers(0, 3000))
@settings(max_examples=60)
def test_a_successor_goes_on_exactly(steps: list[tuple[str, object]], taken: int) -> None:
    memory = memoryview(bytearray(SLOT_BYTES))
    slot = ConnectionSlot(memory)
    written, output, given_in, used = 0, b"", b"", 0
    for number, (kind, value) in enumerate(steps):
        if kind == "write":
            assert isinstance(value, bytes)
            assert slot.publish(
                written, b"%d" % number, value, kept_from=used, received=len(given_in)
            )
            written += len(value)
            output += value
        elif kind == "append":
            assert isinstance(value, bytes)
            if slot.append(b"%d" % number, value, kept_from=used):
                written += len(value)
                output += value
        elif kind == "read":
            assert isinstance(value, bytes)
            receive(slot, len(given_in), value)
            given_in += value
        else:
            assert isinstance(value, int)
            used = min(used + value, len(given_in))
    found = ConnectionSlot.found(memory)
    record = found.record()
    if record is None:
        assert found.kept_input(len(given_in)) == given_in
        return
    accepted = record.begin + min(taken, len(record.output))  # the kernel has so much of it
    assert output[:accepted] + record.output[accepted - record.begin :] == output
    assert found.kept_input(len(given_in)) == given_in[record.kept_from :]
