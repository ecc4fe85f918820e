"""A writer's records, its bounds, what it frees, and a kill at each of its stores."""

from random import Random

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triolet.engine.messages import FinishReason, StepOutputs, TokenLogprobs
from triolet.fuzz.doubles.journal_acts import ACTS, Act, apply
from triolet.fuzz.doubles.journal_memory import Freed, NotedMemory, Published, left_by
from triolet.fuzz.doubles.journal_world import JournalWorld, Parts
from triolet.runtime.errors import JournalStreamTooLarge, Overloaded
from triolet.runtime.journal.logprob_columns import LogprobColumns
from triolet.runtime.journal.reader import read_journal
from triolet.runtime.journal.records import (
    BEGIN_AT,
    FILL_AT,
    REBUILDING_AT,
    ChoiceEnd,
    ChoiceSnapshot,
    ClientCredit,
    Deletion,
    NamedValue,
    Snapshot,
    encode_own,
)
from triolet.runtime.journal.stream import JournalStream, choices_of
from triolet.runtime.journal.writer import TURN_STREAMS_MAX, JournalLimits, JournalWriter

from .making import (
    SEGMENT_BYTES,
    admission,
    open_writer,
    output,
    placement,
    request,
    rows,
    say,
    tokens_in,
)

SMALL = JournalLimits(bytes_max=6000, stream_bytes_max=3000, clean_above_bytes=2000, turn_bytes=200)


def clean(memory: NotedMemory, writer: JournalWriter) -> list[str]:
    """As its owner does; the snapshots are of what a reader finds."""
    names = writer.due()
    for name in names:
        writer.append(read_journal(memory).streams.streams[name].snapshot())
    return names


def test_a_kill_at_any_store_leaves_what_was_published() -> None:
    """Of a run with everything in it, each store is cut off, copies in several ways."""
    memory, writer = open_writer(limits=SMALL)
    before = bytes(memory.data)
    memory.stores.clear()
    published = {SEGMENT_BYTES: (0, dict[str, list[int]]())}
    streams: dict[str, list[int]] = {}

    def note() -> None:
        published[writer.end] = (writer.number, {k: list(v) for k, v in streams.items()})

    def clean_and_note() -> None:
        note()
        for name in writer.due():
            writer.append(read_journal(memory).streams.streams[name].snapshot())
            note()

    for number in range(30):
        name, attempt = f"s{number}", number + 1
        writer.append(admission(name, body=b"b" * 100))
        streams[f"{name}#0"] = []
        clean_and_note()
        writer.append(placement(f"{name}#0", attempt))
        clean_and_note()
        for _ in range(3):
            # The first stream goes on for ever, in the same messages as the others.
            said = {1: streams["s0#0"], attempt: streams[f"{name}#0"]}
            say(writer, rows(*[(each, len(ids), number) for each, ids in said.items()]))
            for ids in said.values():
                ids.append(number)
            clean_and_note()
        if number % 3 == 1:
            writer.append(ChoiceEnd(request_id=f"{name}#0", finish_reason=FinishReason.STOP))
            clean_and_note()
        if number > 1:
            writer.append(Deletion([f"s{number - 1}"]))
            del streams[f"s{number - 1}#0"]
            clean_and_note()
    kinds = {type(store) for store in memory.stores}
    assert Freed in kinds
    looked = 0
    for data in left_by(before, memory.stores, Random(1)):
        contents = read_journal(NotedMemory(bytearray(data)))
        assert not contents.fault
        number, truth = published[contents.end]
        assert contents.number == number
        assert tokens_in(contents) == truth
        looked += 1
    assert looked > 4 * len(memory.stores)


def test_the_order_of_stores() -> None:
    """The record, its fill count; behind snapshots the beginning, and only then the hole."""
    memory, writer = open_writer(limits=SMALL)
    writer.append(admission("a", body=b"x" * 700))
    memory.stores.clear()
    writer.append(admission("b", body=b"x" * 400))
    assert [type(store).__name__ for store in memory.stores] == ["Stored", "Published"]
    names = writer.due()
    assert names == ["a"]
    memory.stores.clear()
    writer.append(read_journal(memory).streams.streams["a"].snapshot())
    _, fill, begin, freed = memory.stores
    assert isinstance(fill, Published)
    assert isinstance(begin, Published)
    assert (fill.position, fill.value) == (FILL_AT, writer.end)
    assert (begin.position, begin.value) == (BEGIN_AT, writer.begin)
    assert isinstance(freed, Freed)
    assert (freed.begin, freed.end) == (SEGMENT_BYTES, writer.begin - writer.begin % SEGMENT_BYTES)


def test_a_long_stream_is_written_anew_and_holds_nothing_up() -> None:
    memory, writer = open_writer(limits=SMALL)
    writer.append(admission("long"))
    writer.append(placement("long#0", 1))
    for index in range(400):
        say(writer, rows((1, index, index)))
        clean(memory, writer)
        writer.check_invariants()
        assert writer.used_bytes < 2 * 2400 + SMALL.clean_above_bytes
    contents = read_journal(memory)
    assert tokens_in(contents) == {"long#0": list(range(400))}
    assert writer.begin > 3000
    assert not any(memory.data[SEGMENT_BYTES : writer.begin - writer.begin % SEGMENT_BYTES])


def test_cleaning_writes_half_of_what_is_appended() -> None:
    """However many streams are idle, a journal does not write them over and over."""
    memory, writer = open_writer(limits=JournalLimits(clean_above_bytes=1000, turn_bytes=200))
    for number in range(40):
        writer.append(admission(f"s{number}"))
    begin, snapshots = writer.end, 0
    for _ in range(200):
        say(writer, rows((99, 0, 0)))
        at = writer.end
        clean(memory, writer)
        snapshots += writer.end - at
    assert snapshots <= (writer.end - begin) * 2 / 3  # a snapshot is longer than its admission
    assert writer.begin > SEGMENT_BYTES


def test_of_small_streams_a_turn_takes_a_few() -> None:
    limits = JournalLimits(clean_above_bytes=100, turn_bytes=1_000_000)
    _, writer = open_writer(limits=limits)
    for number in range(TURN_STREAMS_MAX + 5):
        writer.append(admission(f"s{number}"))
    assert len(writer.due()) == TURN_STREAMS_MAX
    assert writer.due() == []


def test_many_small_values_pin_about_twice_of_what_they_need() -> None:
    """A turn takes a few of them, so the next one comes soon."""
    _, writer = open_writer(limits=JournalLimits(clean_above_bytes=0))
    for number in range(6000):  # of one of them again and again
        writer.append(NamedValue(f"v{min(number, 999)}", b"x" * 100))
        for name in writer.due():
            writer.move(name)
    needed = sum(base.bytes for base in writer._bases.values())
    assert len(writer._bases) == 1000
    assert writer.used_bytes < 2.5 * needed


def test_what_a_stream_may_need_is_what_its_snapshot_may_be() -> None:
    """With logprobs."""
    tokens, top = 300, 2
    asked = attrs.evolve(request("a#0", max_tokens=tokens).sampling, logprobs=top)
    small = attrs.evolve(admission("a"), requests=[attrs.evolve(request("a#0"), sampling=asked)])
    one = TokenLogprobs(1 + top, b"i" * 4 * (1 + top), b"l" * 4 * (1 + top), b"r" * 4)
    (choice,) = choices_of(Snapshot(admission=small, choices=[ChoiceSnapshot()]))
    choice.token_ids, choice.logprobs = [2**31 - 1] * tokens, LogprobColumns.of([one] * tokens)
    size = len(encode_own(JournalStream(small, [choice]).snapshot()))
    for bound, is_refused in ((size, True), (2 * size, False)):
        _, writer = open_writer(limits=JournalLimits(stream_bytes_max=bound))
        if is_refused:
            with pytest.raises(JournalStreamTooLarge):
                writer.append(small)
        else:
            writer.append(small)


def test_admission_is_refused_at_the_bound_and_what_was_admitted_goes_on() -> None:
    memory, writer = open_writer(limits=SMALL)
    writer.append(admission("a"))
    writer.append(placement("a#0", 1))
    for number in range(3):
        writer.append(admission(f"s{number}", body=b"x" * 900))
    end = writer.end
    with pytest.raises(Overloaded, match="journal_bytes_max"):
        writer.append(admission("more", body=b"x" * 900))
    assert (writer.end, writer.number) == (end, 5)
    say(writer, rows((1, 0, 5)))
    writer.append(Deletion(["s0"]))
    clean(memory, writer)
    contents = read_journal(memory)
    assert tokens_in(contents)["a#0"] == [5]
    assert sorted(contents.streams.streams) == ["a", "s1", "s2"]
    writer.append(Deletion(["s1"]))
    writer.append(Deletion(["a"]))
    writer.append(admission("more", body=b"x" * 900))


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_full_journal_that_only_admissions_would_grow_is_cleaned(is_resumed: bool) -> None:
    """Idle streams pin what others have left: a refused admission is as good as growth."""
    limits = attrs.evolve(SMALL, clean_above_bytes=1000)
    memory, writer = open_writer(limits=limits)
    for number in range(3):
        writer.append(admission(f"idle{number}"))
    for number in range(3):
        writer.append(admission(f"s{number}", body=b"x" * 400))
    for number in range(3):
        writer.append(Deletion([f"s{number}"]))
    clean(memory, writer)
    if is_resumed:
        _, writer = open_writer(memory, term=2, limits=limits)
    refused = 0
    while writer.statistics().streams == 3 and refused < 20:
        try:
            writer.append(admission("more", body=b"x" * 1200))
        except Overloaded:
            refused += 1
            clean(memory, writer)
    assert 0 < refused < 20
    assert sorted(read_journal(memory).streams.streams) == ["idle0", "idle1", "idle2", "more"]


def test_a_stream_that_may_need_too_much_is_refused_for_good() -> None:
    _, writer = open_writer(limits=SMALL)
    large = attrs.evolve(admission("a"), requests=[request("a#0", max_tokens=700)])
    with pytest.raises(JournalStreamTooLarge) as caught:
        writer.append(large)
    assert not caught.value.retryable
    assert writer.number == 0
    asks = attrs.evolve(request("a#0", max_tokens=20).sampling, logprobs=9)
    with pytest.raises(JournalStreamTooLarge):
        writer.append(attrs.evolve(large, requests=[attrs.evolve(request("a#0"), sampling=asks)]))


class FullMemory(NotedMemory):
    """Has no page left."""

    def store(self, position: int, data: bytes) -> None:
        raise OSError(28, "no space")


def test_what_is_one_record_is_moved_as_it_is() -> None:
    memory, writer = open_writer(limits=SMALL)
    writer.append(admission("a", body=b"x" * 700))
    writer.append(NamedValue("v", b"value"))
    stream = read_journal(memory).streams.streams["a"]
    stream.handle_end(b"said")
    writer.append(stream.snapshot())
    before = read_journal(memory).streams
    for name in ("v", "a", "v"):
        base = writer.end
        writer.move(name)
        found = read_journal(memory).streams
        assert (found.streams.get(name) or found.values[name]).base == base
        assert found.streams["a"].snapshot() == before.streams["a"].snapshot()
        assert found.values["v"].record == before.values["v"].record
        writer.check_invariants()
    assert writer.begin > 1000
    assert not any(memory.data[SEGMENT_BYTES : writer.begin - writer.begin % SEGMENT_BYTES])


@pytest.mark.parametrize("place", [0, 30, 100, -1])
def test_what_has_changed_is_not_moved(place: int) -> None:
    memory, writer = open_writer()
    writer.append(NamedValue("v", b"x" * 100))
    begin, end = SEGMENT_BYTES, writer.end
    memory.data[range(begin, end)[place]] ^= 1
    with pytest.raises(OSError, match="has changed"):
        writer.move("v")
    del memory.data[end - 1 :]
    with pytest.raises(OSError, match="has changed"):
        writer.move("v")
    assert (writer.end, writer.number) == (end, 1)


def test_a_store_that_fails_appends_nothing() -> None:
    memory, writer = open_writer()
    writer.append(admission("a"))
    writer.memory = FullMemory(memory.data)
    before = (writer.end, writer.number, writer.statistics())
    with pytest.raises(OSError, match="no space"):
        writer.append(admission("b"))
    with pytest.raises(OSError, match="no space"):
        say(writer, rows((1, 0, 0)))
    assert (writer.end, writer.number, writer.statistics()) == before
    writer.memory = memory
    writer.append(admission("b"))
    assert sorted(read_journal(memory).streams.streams) == ["a", "b"]


def test_the_next_life_goes_on_behind_the_last_good_record() -> None:
    memory, writer = open_writer()
    writer.append(admission("a"))
    writer.append(placement("a#0", 1))
    good = writer.end
    say(writer, rows((1, 0, 5)))
    memory.data[writer.end - 1] ^= 1
    _, successor = open_writer(memory, term=2)
    assert (successor.end, successor.number) == (good, 2)
    say(successor, rows((1, 0, 6)))
    successor.append(ClientCredit("a#0", 9))
    stream = read_journal(memory).streams.streams["a"]
    stream.handle_end(b"done")
    successor.append(stream.snapshot())
    contents = read_journal(memory)
    assert (contents.term, contents.number, contents.fault) == (2, 5, "")
    assert tokens_in(contents) == {"a#0": [6]}
    assert contents.streams.streams["a"].said == b"done"


def test_the_next_life_frees_what_the_last_one_did_not_come_to_free() -> None:
    memory, writer = open_writer()
    writer.append(admission("a", body=b"x" * 700))
    writer.append(admission("b"))
    memory.stores.clear()
    before = bytes(memory.data)
    writer.append(Deletion(["a"]))
    assert isinstance(memory.stores[-1], Freed)
    *_, torn, _, _ = left_by(before, memory.stores, Random(1))
    left = NotedMemory(bytearray(torn))
    _, successor = open_writer(left, term=2)
    assert not any(left.data[SEGMENT_BYTES : successor.begin - successor.begin % SEGMENT_BYTES])


def rebuild_deaths(memory: NotedMemory) -> dict[str, int]:
    """As read; what the header says of it was taken away."""
    contents = read_journal(memory)
    assert contents.header.rebuilding == 0
    return {name: stream.rebuild_deaths for name, stream in contents.streams.streams.items()}


def test_a_death_while_a_stream_is_rebuilt_counts_once() -> None:
    """Whatever its store at which the life that notes it dies as well."""
    memory, writer = open_writer()
    writer.append(admission("a"))
    writer.append(admission("b"))
    writer.note_rebuilding("a")
    writer.note_rebuilding("b")
    memory.stores.clear()
    before = bytes(memory.data)
    _, successor = open_writer(memory, term=2)
    looked = 0
    for data in left_by(before, memory.stores, Random(1)):
        left = NotedMemory(bytearray(data))
        open_writer(left, term=3)
        assert rebuild_deaths(left) == {"a": 0, "b": 1}
        looked += 1
    assert looked > 3
    # Of this life itself, whose first record that was; the stream's base moves meanwhile.
    successor.note_rebuilding("b")
    successor.append(read_journal(memory).streams.streams["b"].snapshot())
    open_writer(memory, term=4)
    assert rebuild_deaths(memory) == {"a": 0, "b": 2}


@pytest.mark.parametrize("name", [None, "unknown"])
def test_a_death_at_any_other_time_is_no_streams(name: str | None) -> None:
    memory, writer = open_writer()
    writer.append(admission("a"))
    writer.note_rebuilding("a")
    writer.note_rebuilding(name)
    open_writer(memory, term=2)
    assert rebuild_deaths(memory) == {"a": 0}


def test_any_word_of_a_stream_that_is_rebuilt_is_taken() -> None:
    for word in (1, 2**32, 2**63, 2**64 - 1):
        memory, writer = open_writer()
        writer.append(admission("a"))
        memory.publish(REBUILDING_AT, word)
        open_writer(memory, term=2)
        assert rebuild_deaths(memory) == {"a": 0}


def test_a_term_is_used_once() -> None:
    memory, writer = open_writer()
    writer.append(admission("a"))
    with pytest.raises(AssertionError, match="term 1 after 1"):
        open_writer(memory, term=1)


def test_tokens_and_their_end_are_one_record() -> None:
    memory, writer = open_writer()
    writer.append(admission("a"))
    writer.append(placement("a#0", 1))
    memory.stores.clear()
    before = bytes(memory.data)
    last = output("a#0", 1, 0, [3, 4], FinishReason.LENGTH)
    say(writer, StepOutputs(1, [last]))
    for data in left_by(before, memory.stores, Random(1)):
        choice = read_journal(NotedMemory(bytearray(data))).streams.choice("a#0")
        assert choice is not None
        assert choice.is_over == (choice.token_ids == [3, 4])


class JournalMachine(RuleBasedStateMachine):
    """The fuzzer's world, its acts chosen by hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.world = JournalWorld(Parts())

    @rule(
        what=st.sampled_from(sorted(ACTS)),
        which=st.integers(0, 2**16),
        seed=st.integers(0, 2**32),
    )
    def act(self, what: str, which: int, seed: int) -> None:
        apply(self.world, Act(what, which, seed))

    @invariant()
    def a_reader_finds_what_was_written(self) -> None:
        world = self.world
        contents = world.read(world.memory)
        found = read_journal(world.memory)
        assert found.end == contents.end == world.writer.end
        assert world.found(contents) == {name: note.seen() for name, note in world.notes.items()}


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
