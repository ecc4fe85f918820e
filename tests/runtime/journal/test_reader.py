"""A reader stops where a journal is no longer good, and says why; what is before it is true."""

import pytest

from triolet.engine.messages import UtilityReply
from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.runtime.journal.envelope import RecordKind, seal
from triolet.runtime.journal.reader import RecordWalk, read_journal
from triolet.runtime.journal.records import FILL_AT, SEGMENT_BYTES, ChoiceEnd, encode_own
from triolet.runtime.journal.writer import JournalWriter

from .making import admission, frame, open_writer, placement, rows, say, tokens_in


def small_journal() -> tuple[NotedMemory, JournalWriter, list[int]]:
    """One stream of three tokens, and where its records end."""
    memory, writer = open_writer()
    ends = []
    for record in (admission("a", body=b"x" * 600), placement("a#0", 1)):
        writer.append(record)
        ends.append(writer.end)
    for index in range(3):
        say(writer, rows((1, index, 10 + index)))
        ends.append(writer.end)
    return memory, writer, ends


def put(memory: NotedMemory, record: bytes, position: int) -> None:
    """Store and publish it."""
    memory.store(position, record)
    memory.publish(FILL_AT, position + len(record))


def test_an_empty_journal_has_nothing() -> None:
    memory, _ = open_writer()
    contents = read_journal(memory)
    assert (contents.number, contents.term, contents.fault) == (0, 0, "")
    assert contents.streams.streams == {}


def test_everything_up_to_the_fill_count_is_read() -> None:
    memory, writer, _ = small_journal()
    contents = read_journal(memory)
    assert tokens_in(contents) == {"a#0": [10, 11, 12]}
    assert (contents.number, contents.term, contents.end) == (5, 1, writer.end)
    assert not contents.fault


@pytest.mark.parametrize("piece_bytes", [1, 33, 100, 257, 10_000])
def test_the_size_of_pieces_does_not_matter(piece_bytes: int) -> None:
    memory, writer, _ = small_journal()
    reader = RecordWalk(memory, writer.begin, writer.end, piece_bytes=piece_bytes)
    assert [record.number for record in reader.records()] == [1, 2, 3, 4, 5]
    assert not reader.fault


def test_it_stops_wherever_the_bytes_are_cut_off() -> None:
    memory, writer, ends = small_journal()
    for size in range(256, writer.end):
        contents = read_journal(NotedMemory(memory.data[:size]))
        whole = sum(end <= size for end in ends)
        assert contents.number == whole
        assert contents.end == ([256, *ends])[whole]
        assert "cut off" in contents.fault
        assert tokens_in(contents).get("a#0", []) == [10, 11, 12][: max(0, whole - 2)]


def test_it_stops_before_any_flipped_bit() -> None:
    memory, writer, ends = small_journal()
    for place in range(ends[0], writer.end):
        data = bytearray(memory.data)
        data[place] ^= 1 << place % 8
        contents = read_journal(NotedMemory(data))
        assert contents.number == sum(end <= place for end in ends)
        assert contents.fault


def test_what_was_not_published_is_not_read() -> None:
    memory, writer, _ = small_journal()
    memory.store(
        writer.end,
        seal(frame(rows((1, 3, 13))), RecordKind.MESSAGE, writer.end, 6, term=1),
    )
    assert read_journal(memory).number == 5


@pytest.mark.parametrize(
    ("number", "term", "position", "payload", "reason"),
    [
        (7, 1, 0, encode_own(admission("b")), "record 7 follows 5"),
        (5, 1, 0, encode_own(admission("b")), "record 5 follows 5"),
        (6, 0, 0, encode_own(admission("b")), "term 0 follows 1"),
        (6, 1, 1, encode_own(admission("b")), "checksum"),
        (6, 1, 0, b"nothing", "frames in 7 bytes"),
    ],
)
def test_a_record_that_cannot_follow_ends_it(
    number: int, term: int, position: int, payload: bytes, reason: str
) -> None:
    memory, writer, _ = small_journal()
    record = seal(payload, RecordKind.OWN, writer.end + position, number, term=term)
    put(memory, record, writer.end)
    contents = read_journal(memory)
    assert reason in contents.fault
    assert (contents.number, contents.end) == (5, writer.end)
    assert list(contents.streams.streams) == ["a"]


def test_a_kind_of_a_later_version_ends_it() -> None:
    memory, writer, _ = small_journal()
    record = seal(b"", 9, writer.end, 6, term=1)
    put(memory, record, writer.end)
    assert "kind 9" in read_journal(memory).fault


def test_a_size_beyond_all_memory_is_not_loaded() -> None:
    memory, writer, _ = small_journal()
    record = seal(b"", RecordKind.OWN, writer.end, 6, term=1)
    put(memory, record[:4] + b"\xff\xff\xff\xff" + record[8:], writer.end)
    memory.publish(FILL_AT, 2**60)
    loads: list[int] = []

    class Watched:
        def load(self, position: int, size: int) -> bytes:
            loads.append(size)
            return memory.load(position, size)

    assert "4294967295 bytes" in read_journal(Watched()).fault
    assert max(loads) <= SEGMENT_BYTES


def test_messages_that_bring_no_tokens_and_records_of_nothing_known_are_passed_over() -> None:
    memory, writer, _ = small_journal()
    say(writer, UtilityReply(1))
    writer.append(ChoiceEnd(request_id="b#0", finish_reason="stop"))  # type: ignore[arg-type]
    contents = read_journal(memory)
    assert not contents.fault
    assert contents.streams.passed_over == {"UtilityReply": 1, "late": 1}
