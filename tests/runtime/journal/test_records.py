"""The header and the records of a journal, and what they refuse."""

import attrs
import pytest
from crc32c import crc32c

from triolet.engine.messages import FinishReason, TokenLogprobs
from triolet.runtime.journal.envelope import HEAD_BYTES, RecordHead, RecordKind, seal
from triolet.runtime.journal.records import (
    HEADER_BYTES,
    REBUILDING_AT,
    AdmissionRecord,
    ChoiceEnd,
    ChoiceSnapshot,
    ClientCredit,
    Deletion,
    EngineEnd,
    EngineLife,
    JournalHeader,
    JournalUnreadable,
    Placement,
    RebuildDeath,
    Snapshot,
    decode_payload,
    encode_own,
    rebuilding_word,
)
from triolet.transports.array import Array
from triolet.transports.codec import MalformedMessage

from .making import ENGINE, admission, frame, request, rows

LOGPROBS = TokenLogprobs(1, b"abcd", b"efgh", b"ijkl")
CHOICE = ChoiceSnapshot(
    attempt=4,
    engine=EngineLife(3, 7),
    inexact_from=0,
    token_ids=[5, 2**31, -1],
    logprobs=[LOGPROBS],
    prompt_logprobs=LOGPROBS,
    engine_end=EngineEnd(finish_reason=FinishReason.STOP, stop_token_id=2),
)


def test_the_checksum_is_the_one_of_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_a_fresh_header_is_read_again() -> None:
    header = JournalHeader(home=5, segment_bytes=4096)
    fresh = header.fresh()
    assert JournalHeader.of(fresh) == attrs.evolve(header, begin=4096, fill=4096)
    word = rebuilding_word(9, "a")
    noted = fresh[:REBUILDING_AT] + word.to_bytes(8, "little")
    assert JournalHeader.of(noted).rebuilding == word != rebuilding_word(9, "b")


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, b"x", "no journal"),
        (8, b"\2", "format 2; this reads 1"),
        (13, b"\1", "spoiled"),
        (16, b"\1", "spoiled"),
        (64, b"\0" * 8, "goes from 0"),
        (128, b"\0" * 8, "to 0"),
    ],
)
def test_a_header_that_is_none_is_refused(place: int, value: bytes, reason: str) -> None:
    data = bytearray(JournalHeader(home=5).fresh())
    data[place : place + len(value)] = value
    with pytest.raises(JournalUnreadable, match=reason):
        JournalHeader.of(bytes(data))


def test_segments_hold_the_header() -> None:
    with pytest.raises(JournalUnreadable, match="goes from 0 to 0"):
        JournalHeader.of(JournalHeader(home=5, segment_bytes=0).fresh())


def test_a_header_that_is_cut_off_is_refused() -> None:
    data = JournalHeader(home=5).fresh()
    assert len(data) == HEADER_BYTES
    for size in range(HEADER_BYTES):
        with pytest.raises(JournalUnreadable):
            JournalHeader.of(data[:size])


@pytest.mark.parametrize(
    "record",
    [
        admission("a", choices=3, body=b"\0body"),
        Placement("a#0", 2**33, EngineLife(1, 2), "id", False),
        Placement("a#0", 3, None),
        ClientCredit("a#0", 7),
        ChoiceEnd(request_id="a#0", finish_reason=FinishReason.STOP),
        Deletion(["a", "b"]),
        attrs.evolve(admission("a"), engine=EngineLife(1, 2), numerics_id="id", client_credit=7),
        Snapshot(admission=admission("a", choices=2), choices=[CHOICE, ChoiceSnapshot()]),
        Snapshot(admission=admission("a"), choices=[CHOICE], said=b"", rebuild_deaths=2),
        RebuildDeath("a"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_comes_back_equal(record: AdmissionRecord | Placement) -> None:
    payload = encode_own(record)
    assert decode_payload(RecordKind.OWN, memoryview(payload)) == record


def test_a_prompt_is_stored_once_for_all_choices() -> None:
    embeds = Array("float32", (2, 1), b"12345678")
    requests = [
        attrs.evolve(request(f"a#{number}", prompt=2), prompt_embeds=embeds) for number in range(3)
    ]
    record = AdmissionRecord.of("a", requests)
    assert [len(each.prompt_token_ids) for each in record.requests] == [2, 0, 0]
    assert record.choices() == requests


def test_large_embeddings_travel_beside_the_fields() -> None:
    embeds = Array("float32", (100_000,), bytes(400_000))
    record = AdmissionRecord.of("a", [attrs.evolve(request("a#0"), prompt_embeds=embeds)])
    found = decode_payload(RecordKind.OWN, memoryview(encode_own(record)))
    assert isinstance(found, AdmissionRecord)
    assert found.requests[0].prompt_embeds is not None
    assert found.requests[0].prompt_embeds.data == embeds.data


def test_an_engines_message_is_kept_as_it_was_sent() -> None:
    message = rows((2**33, 4, 17))
    payload = frame(message)
    record = memoryview(seal(payload, RecordKind.MESSAGE, 999, 8, term=3, sender=ENGINE))
    head = RecordHead.of(record)
    assert record[HEAD_BYTES:] == payload
    assert (head.number, head.term, head.sender, head.payload_bytes) == (8, 3, ENGINE, len(payload))
    assert head.is_of(record, 999)
    assert decode_payload(head.kind, record[HEAD_BYTES:]) == message


def test_any_flipped_bit_and_any_other_place_is_noticed() -> None:
    record = seal(b"payload", RecordKind.OWN, 256, 8, term=3)
    assert RecordHead.of(memoryview(record)).is_of(memoryview(record), 256)
    assert not RecordHead.of(memoryview(record)).is_of(memoryview(record), 512)
    for bit in range(8 * len(record)):
        data = bytearray(record)
        data[bit // 8] ^= 1 << bit % 8
        assert not RecordHead.of(memoryview(data)).is_of(memoryview(data), 256), bit


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (RecordKind.OWN, b""),
        (RecordKind.OWN, encode_own(Deletion(["a"]))[:-1]),
        (RecordKind.OWN, encode_own(Deletion(["a"])) + b"x"),
        (RecordKind.MESSAGE, b""),
        (RecordKind.MESSAGE, b"\xff"),
        (7, encode_own(Deletion(["a"]))),
    ],
)
def test_a_payload_of_nothing_known_is_malformed(kind: int, payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_payload(kind, memoryview(payload))


def test_a_snapshot_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="as many choices"):
        Snapshot(admission=admission("a"), choices=[])
