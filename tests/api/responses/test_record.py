"""Any merging, any readers, any cuts and resumes: everybody concatenates the same stream."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.openai.response_events import DELTA, Event
from triolet.api.responses.record import RecordReader, ResponseRecord

from ..records import COMPLETED, as_read, make_record, say, taken

ALL = 2**30


def numbers(events: list[Event]) -> list[int]:
    found = []
    for event in events:
        number = event["sequence_number"]
        assert isinstance(number, int)
        found.append(number)
    return found


def text_of(events: list[Event]) -> str:
    return "".join([str(event["delta"]) for event in events if event["type"] == DELTA])


def ids_of(events: list[Event]) -> list[int]:
    ids: list[int] = []
    for event in events:
        if event["type"] == DELTA and "token_ids" in event:
            more = event["token_ids"]
            assert isinstance(more, list)
            assert event["token_index"] == len(ids)
            ids += more
    return ids


def make_said(*texts: str, **values: Any) -> ResponseRecord:
    record = make_record(**values)
    for text in texts:
        say(record, text)
    return record


def test_an_unmerged_stream_has_no_gap() -> None:
    record = make_record()
    reader, events = record.reader(), []
    events += taken(reader, ALL)
    for text in "abc":
        say(record, text)
        events += taken(reader, ALL)
    record.end(COMPLETED)
    events += taken(reader, ALL)
    assert numbers(events) == list(range(11))
    assert reader.is_done
    assert reader.merged == 0
    assert not reader.is_ready


def test_what_waits_is_merged_with_the_number_of_its_last_part() -> None:
    record = make_said("a", "b", "c")
    reader = record.reader(3)
    (delta,) = taken(reader, ALL)
    assert (delta["delta"], delta["sequence_number"]) == ("abc", 6)
    assert reader.merged == 2


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_take_is_bounded_and_says_that_more_is_there(is_ended: bool) -> None:
    record = make_said("aa", "bb", "cc")
    if is_ended:
        record.end(COMPLETED)
    reader = record.reader(3)
    assert text_of(taken(reader, 3)) == "aabb"
    assert (reader.is_ready, reader.lag) == (True, 2)
    assert text_of(taken(reader, 3)) == "cc"
    assert reader.is_done is is_ended


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize(
    ("after", "rest"),
    [(None, "abcd"), (0, "abcd"), (3, "abcd"), (4, "bcd"), (6, "d"), (7, "")],
)
def test_a_reader_goes_on_behind_any_number(after: int | None, rest: str, is_ended: bool) -> None:
    record = make_said("a", "b", "c", "d")
    if is_ended:
        record.end(COMPLETED)
    events = taken(record.reader(after), ALL)
    assert text_of(events) == rest
    assert all(number > (-1 if after is None else after) for number in numbers(events))


def test_within_the_end_and_behind_it() -> None:
    record = make_said("a")
    record.end(COMPLETED)
    assert numbers(taken(record.reader(5), ALL)) == [6, 7, 8]
    assert record.reader(8).is_done
    for after in (9, -1):
        with pytest.raises(ApiError) as caught:
            record.reader(after)
        assert (caught.value.code, caught.value.param) == ("invalid_value", "starting_after")


def test_ahead_of_what_was_said_is_refused() -> None:
    record = make_said("a")
    record.reader(4)
    with pytest.raises(ApiError, match="beyond the last event, 4"):
        record.reader(5)


def test_a_number_within_a_piece_means_the_whole_piece() -> None:
    record = make_record()
    say(record, "abc", 3)
    assert text_of(taken(record.reader(5), ALL)) == "abc"
    assert text_of(taken(record.reader(6), ALL)) == ""


def test_silent_tokens_make_no_event_unless_ids_are_asked_for() -> None:
    record, with_ids = make_record(), make_record(runtime={"token_ids": True})
    for one in (record, with_ids):
        say(one, "")
        say(one, "é")
        one.end(COMPLETED)
    assert numbers(taken(record.reader(3), ALL))[:2] == [5, 6]
    assert ids_of(taken(with_ids.reader(), ALL)) == [0, 1]
    assert len(taken(with_ids.reader(4), ALL)) == 5
    assert (record.token_ids, with_ids.token_ids) == (None, [0, 1])


def test_notices_stand_between_the_pieces() -> None:
    record = make_record()
    record.add_notice({"type": "runtime.queued"})
    say(record, "a")
    record.add_notice({"type": "runtime.preempted"})
    say(record, "b")
    events = taken(record.reader(), ALL)
    assert [event["type"] for event in events[4:]] == [
        "runtime.queued", DELTA, "runtime.preempted", DELTA
    ]  # fmt: skip
    assert numbers(events)[4:] == [3, 4, 4, 5]
    resumed = taken(record.reader(4), ALL)
    assert [event["type"] for event in resumed] == ["runtime.preempted", DELTA]
    assert [e["type"] for e in taken(record.reader(4, with_notices=False), ALL)] == [DELTA]
    record.check_invariants()


def test_a_response_without_output() -> None:
    record = make_record(generate=False)
    assert record.last_number == 1
    record.end(COMPLETED)
    assert numbers(taken(record.reader(), ALL)) == [0, 1, 7]
    assert numbers(taken(record.reader(1), ALL)) == [7]


pieces = st.lists(st.tuples(st.text(alphabet="xyzé", max_size=3), st.integers(1, 3)), max_size=15)
# What happens next: a piece is said, or one of three readers takes, is cut and comes back.
moves = st.lists(st.tuples(st.sampled_from("stc"), st.integers(0, 2), st.integers(1, 9)))


@given(pieces, moves, st.booleans())
def test_every_reader_concatenates_the_same_stream(
    said: list[tuple[str, int]], plan: list[tuple[str, int, int]], token_ids: bool
) -> None:
    record = make_record(runtime={"token_ids": token_ids})
    waiting = list(said)
    readers = [record.reader() for _ in range(3)]
    heard: list[list[Event]] = [[], [], []]

    def take(index: int, characters_max: int) -> None:
        reader = readers[index]
        assert reader.is_ready or taken(reader, characters_max) == []
        heard[index] += taken(reader, characters_max)

    for move, index, size in plan:
        if move == "s" and waiting:
            say(record, *waiting.pop(0))
        elif move == "t":
            take(index, size)
        elif heard[index]:
            readers[index] = record.reader(numbers(heard[index])[-1])
        record.check_invariants()
    for piece in waiting:
        say(record, *piece)
    record.end(COMPLETED)
    record.check_invariants()
    for index, reader in enumerate(readers):
        while not readers[index].is_done:
            take(index, 2)
        check_whole(record, heard[index], reader)


def check_whole(record: ResponseRecord, heard: list[Event], reader: RecordReader) -> None:
    assert text_of(heard) == record.text
    assert numbers(heard) == sorted(set(numbers(heard)))
    assert [e for e in heard if e["type"] != DELTA] == [
        e for e in taken(record.reader(), ALL) if e["type"] != DELTA
    ]
    assert ids_of(heard) == (record.token_ids or [])
    assert not reader.is_ready or not reader.is_done


LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


def told_in(events: list[Event]) -> list[Any]:
    """The bytes of each token whose logprob the deltas tell."""
    found: list[Any] = []
    for event in events:
        if event["type"] == DELTA:
            entries: Any = event["logprobs"]
            found += [entry["bytes"] for entry in entries]
    return found


@given(st.lists(st.sampled_from(["a", "", "bc"]), max_size=8), st.integers(-1, 12), st.booleans())
def test_logprobs_go_with_their_tokens_from_any_number(
    texts: list[str], after: int, is_ended: bool
) -> None:
    record = make_said(*texts, **LOGPROBS)
    if is_ended:
        record.end(COMPLETED)
    record.check_invariants()
    starting_after = None if after < 0 else min(after, record.last_number)
    events = taken(record.reader(starting_after), ALL)
    first = max(0, (-1 if starting_after is None else starting_after) - 3)
    assert told_in(events) == [[token_id] for token_id in range(first, len(texts))]
    if is_ended:
        whole = as_read(record.snapshot())
        entries = whole["output"][0]["content"][0]["logprobs"]
        assert [entry["bytes"] for entry in entries] == [[i] for i in range(len(texts))]
        assert whole["top_logprobs"] == 1
    assert record.extra_bytes >= len(texts) * 4 * 5


def test_without_being_asked_for_there_are_none() -> None:
    record = make_said("a", "b")
    assert told_in(taken(record.reader(), ALL)) == []
    assert record.logprobs is None
