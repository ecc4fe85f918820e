"""A frontend's side of its journal: at any moment a reader finds what the frontend knows."""

import os
from random import Random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.errors import EngineDraining
from triolet.engine.messages import AddRequest, FinishReason, RequestOutput, StepOutputs
from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.fuzz.doubles.journal_notes import LOGPROBS
from triolet.runtime.errors import JournalStreamTooLarge, Overloaded
from triolet.runtime.journal.journal import PASSING_MAX, Journal, open_journal
from triolet.runtime.journal.memory import create_journal
from triolet.runtime.journal.reader import read_journal
from triolet.runtime.journal.records import (
    FILL_AT,
    Deletion,
    JournalUnreadable,
    NamedValue,
    Snapshot,
)
from triolet.runtime.journal.stream import JournalChoice
from triolet.runtime.journal.writer import JournalLimits

from .making import (
    ENGINE,
    SEGMENT_BYTES,
    Tokens,
    admission,
    admit,
    frame,
    note,
    open_noted,
    output,
    placement,
    request,
    rows,
)

# Snapshots are due all the time.
SHORT = JournalLimits(clean_above_bytes=1024, turn_bytes=256)


def fresh(limits: JournalLimits | None = None) -> tuple[NotedMemory, Journal]:
    memory = NotedMemory.fresh(SEGMENT_BYTES)
    return memory, open_noted(memory, limits=limits)


def test_what_a_frontend_says_is_what_its_successor_finds() -> None:
    memory, journal = fresh()
    first, second = admit(journal, "s1", choices=2, credit=9)
    for number, sink in enumerate((first, second)):
        journal.place(placement(f"s1#{number}", number + 1))
        sink.token_ids.append(5)
    journal.append_message(ENGINE, frame(rows((1, 0, 5), (2, 0, 5))))
    last = output("s1#0", 1, 1, [6], FinishReason.STOP)
    first.token_ids.append(6)
    journal.append_message(ENGINE, frame(StepOutputs(1, [last])), [last])
    journal.end_choice("s1#1", FinishReason.ABORT)
    journal.grant("s1#1", 20)
    journal.end("s1", b"cancelled")
    journal.end("s1", b"and again")
    (stream,) = open_noted(memory, term=2).streams()
    assert (stream.said, stream.admission.surface) == (b"cancelled", "tests")
    assert [choice.token_ids for choice in stream.choices] == [[5, 6], [5]]
    one, other = stream.choices
    assert one.engine_end is not None
    assert other.end is not None
    assert (one.client_credit, other.end.finish_reason) == (9, FinishReason.ABORT)
    assert journal.streams() == []
    journal.forget("s1")
    assert open_noted(memory, term=3).streams() == []


def test_a_refused_stream_is_none() -> None:
    memory, journal = fresh(JournalLimits(bytes_max=1000, stream_bytes_max=3000))
    with pytest.raises(JournalStreamTooLarge):
        journal.admit(note("s1"), [(request("s1#0", max_tokens=10_000), Tokens())], None)
    admit(journal, "s2")
    with pytest.raises(Overloaded):
        admit(journal, "s3")
    assert [stream.admission.name for stream in journal.streams()] == ["s2"]
    assert len(open_noted(memory, term=2).streams()) == 1


def test_one_that_cannot_be_resumed_is_written_when_it_has_ended() -> None:
    memory, journal = fresh()
    for name in ("s1", "s2"):
        (sink,) = admit(journal, name, credit=9, is_resumable=False)
        journal.place(placement(f"{name}#0", 1))
        sink.token_ids.append(5)
        journal.append_message(ENGINE, frame(rows((1, 0, 5))))
    journal.forget("s2")
    assert journal.writer.number == 0
    journal.end("s1", b"completed")
    (stream,) = open_noted(memory, term=2).streams()
    assert (stream.said, stream.choices[0].token_ids) == (b"completed", [5])
    journal.forget("s1")
    assert open_noted(memory, term=3).streams() == []


def test_what_engines_say_is_written_while_a_choice_goes_on_and_no_longer() -> None:
    """One whose choices are over may be kept for long: its answer is there, whole."""
    memory, journal = fresh()
    first, second = admit(journal, "s1", choices=2)
    for number, sink in enumerate((first, second)):
        journal.place(placement(f"s1#{number}", number + 1))
        sink.token_ids.append(5)
    last = [output(f"s1#{n}", n + 1, 0, [5], FinishReason.STOP) for n in range(2)]
    journal.append_message(ENGINE, frame(StepOutputs(1, last[:1])), last[:1])
    after_one = journal.writer.number
    journal.append_message(ENGINE, frame(rows((9, 0, 5))))
    assert journal.writer.number == after_one + 1, "the other one goes on"
    journal.append_message(ENGINE, frame(StepOutputs(1, last[1:])), last[1:])
    for _ in range(2):
        written = journal.writer.number
        journal.append_message(ENGINE, frame(rows((9, 1, 5))))
        assert journal.writer.number == written
        (stream,) = journal.streams()
        assert [(each.token_ids, each.is_over) for each in stream.choices] == [([5], True)] * 2
        journal = open_noted(memory, term=journal.writer.term + 1)
    admit(journal, "s2")
    journal.append_message(ENGINE, frame(rows((9, 1, 5))))
    assert journal.writer.number == written + 2


def test_what_may_lack_something_does_until_it_is_over() -> None:
    memory, journal = fresh()
    for name in ("s1", "s2", "s3"):
        admit(journal, name)
    journal.end("s3", b"")
    memory.data += b"?"  # the end of it was lost
    memory.publish(FILL_AT, len(memory.data))
    for term, lacking in ((2, ["s1", "s2"]), (3, ["s1", "s2"]), (4, ["s2"]), (5, [])):
        written = read_journal(memory).number
        journal = open_noted(memory, term=term)
        # What changed is one record: between two of them this life may end.
        assert journal.writer.number == written + (term != 3)
        assert journal.is_whole is (term > 2)
        names = [name for name in ("s1", "s2", "s3", "s4") if journal.may_lack(name)]
        assert names == lacking
        admit(journal, f"s{term + 2}")
        if term > 2:
            journal.end_choice(f"s{term - 2}#0", FinishReason.ABORT)
    assert journal.values() == {}


@pytest.mark.parametrize("ends", [True, False], ids=["ended here", "by its stream"])
def test_nor_when_it_was_ended_here(ends: bool) -> None:
    _, journal = fresh()
    admit(journal, "s1")
    if ends:
        journal.end_choice("s1#0", FinishReason.ABORT)
    else:
        journal.end("s1", b"")
    written = journal.writer.number
    journal.append_message(ENGINE, frame(rows((9, 0, 5))))
    assert journal.writer.number == written


def grow(journal: Journal) -> None:
    """By so much that all there is is written anew."""
    base = journal.writer.end
    for number in range(20):
        admit(journal, f"other{number}")
        journal.forget(f"other{number}")
    assert journal.writer.begin > base


def test_ended_streams_are_kept_in_their_records_alone() -> None:
    """In later lives too, but those that lives have died of."""
    memory, journal = fresh(SHORT)
    for name in ("s1", "s2"):
        (sink,) = admit(journal, name)
        sink.token_ids += [7, 8, 9]
        journal.end(name, name.encode())
    found = read_journal(memory).streams.streams
    said = {name: stream.snapshot() for name, stream in found.items()}
    assert journal.streams() == []
    grow(journal)
    journal.note_rebuilding("s2")
    journal = open_noted(memory, term=2, limits=SHORT)
    journal.note_rebuilding(None)
    assert len(journal.streams()) == 2
    journal.handle_adopted()
    assert [each.admission.name for each in journal.streams()] == ["s2"]
    grow(journal)
    for name, stream in read_journal(memory).streams.streams.items():
        deaths = int(name == "s2")
        assert stream.snapshot() == attrs.evolve(said[name], rebuild_deaths=deaths)


def test_ended_streams_are_loaded_when_they_are_looked_into() -> None:
    """Wherever they lie by then, and while the journal is given up; one that has changed is not."""
    memory, journal = fresh(SHORT)
    for name in ("s1", "s2", "s3"):
        (sink,) = admit(journal, name)
        sink.token_ids += [7, 8, 9]
        journal.end(name, name.encode())
    journal = open_noted(memory, term=2, limits=SHORT)
    streams = {stream.name: stream for stream in journal.streams()}
    journal.handle_adopted()
    grow(journal)
    assert all(stream.load is not None for stream in streams.values())
    assert streams["s1"].choices[0].token_ids == [7, 8, 9]
    assert streams["s1"].load is None
    place = memory.data.rindex(b"s3#0")
    memory.data[place] ^= 1
    with pytest.raises(JournalUnreadable, match="has changed"):
        streams["s3"].choices  # noqa: B018
    memory.data[place] ^= 1
    assert streams["s3"].admission.name == "s3"
    journal.give_up(OSError(28, "No space left on device"))
    assert streams["s2"].choices[0].token_ids == [7, 8, 9]
    assert read_journal(memory).streams.streams == {}
    assert journal.statistics().used_bytes == 0


def test_what_is_to_be_forgotten_soon_is_one_record_with_others() -> None:
    memory, journal = fresh()
    names = [f"s{number}" for number in range(PASSING_MAX + 2)]
    for name in names:
        admit(journal, name, is_resumable=False)
        journal.end(name, b"")
    number = journal.writer.number
    for name in names[: PASSING_MAX - 1]:
        journal.forget_soon(name)
    assert journal.writer.number == number
    assert len(open_noted(NotedMemory(bytearray(memory.data)), term=2).streams()) == len(names)
    journal.forget_soon(names[PASSING_MAX - 1])
    assert journal.writer.number == number + 1
    journal.forget_soon(names[-2])
    journal.forget(names[-1])
    assert journal.writer.number == number + 2
    assert open_noted(memory, term=2).streams() == []


def test_a_journal_that_has_changed_is_given_up() -> None:
    memory, journal = fresh(SHORT)
    journal.keep_value("v", b"x" * 500)
    memory.data[SEGMENT_BYTES + 100] ^= 1
    for number in range(8):
        journal.keep_value(f"v{number}", b"x" * 500)
    assert journal.values() == {}
    assert journal.statistics().streams == 0


class FullMemory(NotedMemory):
    """Takes nothing once it is full."""

    is_full = False

    def store(self, position: int, data: bytes) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().store(position, data)


def test_a_journal_that_can_take_no_more_is_given_up_and_leaves_none() -> None:
    noted = NotedMemory.fresh(SEGMENT_BYTES)
    memory = FullMemory(noted.data)
    journal = open_noted(memory)
    (sink,) = admit(journal, "s1")
    journal.place(placement("s1#0", 1))
    memory.is_full = True
    sink.token_ids.append(5)
    journal.append_message(ENGINE, frame(rows((1, 0, 5))))
    memory.is_full = False
    assert journal.streams() == []
    number = journal.writer.number
    admit(journal, "s2")
    journal.keep_value("a value", b"")
    journal.append_message(ENGINE, frame(rows((1, 1, 6))))
    assert (journal.streams(), journal.values(), journal.writer.number) == ([], {}, number)
    journal.end_choice("s1#0", FinishReason.ABORT)
    journal.end("s1", b"")
    journal.forget("s1")
    successor = open_noted(memory, term=2)
    assert successor.streams() == []
    admit(successor, "s3")
    assert [each.admission.name for each in open_noted(memory, term=3).streams()] == ["s3"]


def test_the_memory_of_a_process_is_taken_up_by_the_next() -> None:
    fd = create_journal(3)
    try:
        with open_journal(fd, 1, JournalLimits()) as journal:
            admit(journal, "s1")
            journal.note_rebuilding("s1")
        with open_journal(fd, 2, JournalLimits()) as journal:
            (stream,) = journal.streams()
            assert stream.rebuild_deaths == 1
            journal.note_rebuilding(None)
            assert journal.statistics().streams == 1
        with open_journal(fd, 3, JournalLimits()) as journal:
            assert [each.rebuild_deaths for each in journal.streams()] == [1]
    finally:
        os.close(fd)


class Life:
    """A frontend that does anything, over memory that outlives it."""

    def __init__(self) -> None:
        self.memory, self.journal = fresh(SHORT)
        self.term = 1
        self.count = 0
        self.ended: dict[str, Snapshot] = {}

    def choices(self) -> list[JournalChoice]:
        streams = self.journal.streams()
        return [each for stream in streams for each in stream.choices if not each.is_over]

    def act(self, what: int, chance: Random) -> None:
        choices = self.choices()
        self.count += 1
        if what == 0 or not choices:
            how = chance.randint(1, 2), chance.choice([None, 7])
            is_resumable = chance.random() < 0.8
            admit(self.journal, f"s{self.count}", *how, is_resumable=is_resumable)
            return
        if what == 9:
            self.forget_ended(chance)
            return
        choice = chance.choice(choices)
        request_id = choice.request.request_id
        name = request_id.partition("#")[0]
        match what:
            case 1:
                self.journal.place(placement(request_id, self.count))
            case 2 if choice.peer is not None:
                choice.token_ids.append(self.count)
                row = (choice.attempt, len(choice.token_ids) - 1, self.count)
                self.journal.append_message(ENGINE, frame(rows(row)))
            case 3 if choice.peer is not None:
                self._speak(choice, chance)
            case 4:
                self.journal.end_choice(request_id, FinishReason.ABORT)
            case 5:
                self.journal.grant(request_id, self.count)
            case 6:
                (stream,) = [s for s in self.journal.streams() if s.admission.name == name]
                self.journal.end(name, b"said")
                self.ended[name] = stream.snapshot()
            case 7:
                self.journal.forget(name)
            case 8:
                self.term += 1
                self.journal = open_noted(self.memory, term=self.term, limits=SHORT)
                if chance.random() < 0.8:
                    self.journal.handle_adopted()

    def forget_ended(self, chance: Random) -> None:
        """Some at once, one soon, or with another."""
        gone = chance.sample(sorted(self.ended), min(len(self.ended), chance.randint(1, 3)))
        if chance.random() < 0.5 and gone:
            self.journal.forget_soon(gone[0])
            self.journal.forget(*gone[1:])
        else:
            self.journal.forget(*gone)
        for name in gone:
            del self.ended[name]

    def _speak(self, choice: JournalChoice, chance: Random) -> None:
        """A whole output, or the refusal of an engine that drains."""
        request: AddRequest = choice.request
        said: RequestOutput = output(
            request.request_id, choice.attempt, len(choice.token_ids), [self.count]
        )
        if chance.random() < 0.2:
            said.token_ids, said.finish_reason = [], FinishReason.ERROR
            said.error_code = EngineDraining.code
            message = frame(StepOutputs(1, [said]))
            self.journal.append_message(ENGINE, message, [], [request.request_id])
            return
        said.logprobs, said.cached_tokens = LOGPROBS, 2
        said.finish_reason = chance.choice([None, None, FinishReason.LENGTH])
        choice.token_ids.append(self.count)
        self.journal.append_message(ENGINE, frame(StepOutputs(1, [said])), [said])

    def check(self) -> None:
        read = read_journal(self.memory)
        assert not read.fault
        found = {name: stream.snapshot() for name, stream in read.streams.streams.items()}
        known = {
            each.admission.name: each.snapshot()
            for each in self.journal.streams()
            if each.said is None and each.choices[0].is_written
        }
        assert found == known | self.ended
        self.journal.writer.check_invariants()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**16)), max_size=60))
def test_a_reader_finds_what_the_frontend_knows(acts: list[tuple[int, int]]) -> None:
    life = Life()
    for what, seed in acts:
        life.act(what, Random(seed))
        life.check()


@pytest.mark.parametrize("limits", [None, SHORT], ids=["long", "short"])
def test_a_value_of_the_api_is_found_until_it_is_forgotten(limits: JournalLimits | None) -> None:
    memory, journal = fresh(limits)
    wanted: dict[str, bytes] = {}
    for number in range(40):
        name = f"v{number % 7}"
        wanted.pop(name, None)
        wanted[name] = bytes([number]) * 60
        journal.keep_value(name, wanted[name])
        admit(journal, f"s{number}")
        journal.forget(f"s{number}")
    journal.forget_value("v3")
    journal.forget_value("unknown")
    del wanted["v3"]
    assert journal.values() == wanted
    assert open_noted(memory, term=2).values() == wanted
    journal.writer.check_invariants()
    if limits is not None:
        assert journal.writer.used_bytes < 4 * limits.clean_above_bytes


def test_values_and_streams_have_names_of_their_own() -> None:
    streams = read_journal(fresh()[0]).streams
    streams.handle_own(admission("a"), 256, 100)
    streams.handle_own(NamedValue("a", b"x"), 400, 100)
    streams.handle_own(NamedValue("b", b"x"), 500, 100)
    streams.handle_own(admission("b"), 600, 100)
    streams.handle_own(NamedValue("b", b"y"), 700, 100)
    assert (list(streams.streams), list(streams.values)) == (["a"], ["b"])
    assert streams.values["b"].record.value == b"y"
    assert streams.passed_over.total() == 2
    streams.check_invariants()
    streams.handle_own(Deletion(["b"]), 800, 100)
    assert not streams.values
