"""A journal on disk: what was synced survives any power cut, and nothing else is ever read."""

from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.fuzz.doubles.journal_disk import SectorDisk
from triolet.runtime.journal.disk import (
    DISK_HEADER_BYTES,
    MACHINE_DIED,
    SECTOR_BYTES,
    Checkpoint,
    DiskJournal,
    read_disk_header,
)
from triolet.runtime.journal.reader import JournalContents
from triolet.runtime.journal.records import ClientCredit, Deletion, JournalUnreadable
from triolet.runtime.journal.writer import JournalLimits, JournalWriter

from .making import admission, placement, rows, say, tokens_in

SEGMENT = DISK_HEADER_BYTES
BOOT, LATER_BOOT = b"a" * 16, b"b" * 16
LIMITS = JournalLimits(clean_above_bytes=SEGMENT, turn_bytes=512)


class Life:
    """A writer of this disk, and what is true of its streams."""

    def __init__(self, disk: SectorDisk, term: int, boot: bytes = BOOT) -> None:
        self.disk = disk
        # A row for each time that something was stored after all was synced.
        self.unsynced: list[None] = []
        on_unsynced = partial(self.unsynced.append, None)
        self.journal, self.contents = DiskJournal.read(disk, boot, on_unsynced)
        self.writer = JournalWriter.resume(self.journal, self.contents, term, LIMITS)
        self.term = term
        self.tokens = tokens_in(self.contents)
        # As of the last sync.
        self.synced = {name: list(tokens) for name, tokens in self.tokens.items()}

    def admit(self, name: str) -> None:
        self.writer.append(admission(name, prompt=40))
        self.writer.append(placement(f"{name}#0", self.attempt(name)))
        self.tokens[f"{name}#0"] = []

    def go_on(self) -> None:
        for request_id in self.tokens:
            self.writer.append(placement(request_id, self.attempt(request_id.partition("#")[0])))

    def attempt(self, name: str) -> int:
        return self.term * 1000 + int(name)

    def say(self, name: str) -> None:
        tokens = self.tokens[f"{name}#0"]
        token = len(tokens) * 31 % 1000
        say(self.writer, rows((self.attempt(name), len(tokens), token)))
        tokens.append(token)
        self.clean()

    def forget(self, name: str) -> None:
        del self.tokens[f"{name}#0"]
        self.writer.append(Deletion([name]))
        self.synced.pop(f"{name}#0", None)  # it may be there or not

    def clean(self) -> None:
        for name in self.writer.due():
            self.writer.append(read(self.disk.copy()).streams.streams[name].snapshot())

    def sync(self) -> None:
        order = self.journal.begin_sync()
        order.carry_out(self.disk)
        self.journal.end_sync(order)
        self.synced = {name: list(tokens) for name, tokens in self.tokens.items()}


def read(disk: SectorDisk, boot: bytes = BOOT) -> JournalContents:
    return DiskJournal.read(disk, boot)[1]


def life(term: int = 1) -> Life:
    return Life(SectorDisk.fresh(SEGMENT, BOOT), term)


def test_a_fresh_one_is_empty() -> None:
    contents = life().contents
    assert (contents.header.begin, contents.end, contents.fault) == (SEGMENT, SEGMENT, "")
    assert not contents.streams.streams


def test_a_later_life_of_this_boot_finds_all_of_it() -> None:
    first = life()
    first.admit("1")
    for _ in range(30):
        first.say("1")
    second = Life(first.disk.copy(), 2)
    assert not second.contents.fault
    assert second.tokens == first.tokens
    second.go_on()
    second.say("1")
    assert tokens_in(read(second.disk)) == second.tokens
    assert len(second.tokens["1#0"]) == 31


def test_what_was_not_synced_may_be_missing_after_a_death_of_the_machine() -> None:
    first = life()
    first.admit("1")
    first.sync()
    assert read(first.disk).fault == ""
    assert read(first.disk, LATER_BOOT).fault == MACHINE_DIED
    second = Life(first.disk, 2, LATER_BOOT)
    second.sync()
    assert read(second.disk, LATER_BOOT).fault == ""  # from now on it is of this boot


def test_a_record_that_was_cut_off_is_cut_off_the_file() -> None:
    first = life()
    first.admit("1")
    end = first.writer.end
    first.disk.write(end, b"x" * 700)  # within its write, the process was killed
    second = Life(first.disk, 2)
    assert second.contents.fault.startswith(f"at {end}: ")
    assert first.disk.size() == end
    second.go_on()
    assert read(first.disk).fault == ""


def test_what_no_stream_needs_is_given_back_two_syncs_later() -> None:
    first = life()
    first.admit("1")
    for _ in range(200):
        first.say("1")
    assert first.writer.begin > 2 * SEGMENT
    used = first.disk.used_bytes()
    assert read_disk_header(first.disk)[0].begin == SEGMENT
    first.sync()
    assert read_disk_header(first.disk)[0].begin == first.writer.begin
    assert first.disk.used_bytes() >= used
    first.sync()
    assert first.disk.used_bytes() < used - SEGMENT
    assert first.journal.is_synced
    assert tokens_in(read(first.disk)) == first.tokens


def test_an_abandoned_one_is_empty_at_once() -> None:
    first = life()
    first.admit("1")
    first.sync()
    first.writer.abandon()
    second = Life(first.disk.copy(), 2)
    assert not second.tokens
    second.admit("2")
    assert tokens_in(read(second.disk)) == {"2#0": []}


def test_an_order_from_before_does_not_undo_that() -> None:
    first = life()
    first.admit("1")
    for _ in range(200):
        first.say("1")
    order = first.journal.begin_sync()
    first.writer.abandon()
    order.carry_out(first.disk)
    first.journal.end_sync(order)
    assert not tokens_in(read(first.disk))


def test_it_says_when_there_is_something_to_sync() -> None:
    first = life()
    first.sync()
    first.admit("1")
    first.say("1")
    assert len(first.unsynced) == 1
    first.writer.note_rebuilding(None)
    first.sync()
    assert first.journal.is_synced
    first.writer.note_rebuilding("1")
    assert len(first.unsynced) == 2


def test_the_stream_that_was_being_rebuilt_is_found() -> None:
    first = life()
    first.admit("1")
    first.writer.note_rebuilding("1")
    second = Life(first.disk, 2)
    assert second.contents.streams.streams["1"].rebuild_deaths == 1
    assert read(second.disk).streams.streams["1"].rebuild_deaths == 1
    assert read_disk_header(second.disk)[0].rebuilding == 0


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_checkpoint_that_is_torn_was_not_relied_on(rounds: int) -> None:
    first = life()
    first.admit("1")
    for _ in range(rounds):
        for _ in range(200):
            first.say("1")
        first.sync()
    _, stored = read_disk_header(first.disk)
    first.disk.write(stored.position + 20, b"\xff" * 8)
    assert read_disk_header(first.disk)[1].number == stored.number - 1
    assert first.tokens == tokens_in(read(first.disk))


@pytest.mark.parametrize(
    ("position", "data", "reason"),
    [
        (0, b"\0", "no journal"),
        (8, b"\2", "format 2"),
        (12, b"\0\0", "spoiled"),
        (SECTOR_BYTES, bytes(2 * SECTOR_BYTES), "no checkpoint"),
    ],
)
def test_what_is_no_journal_is_refused(position: int, data: bytes, reason: str) -> None:
    disk = SectorDisk.fresh(SEGMENT, BOOT)
    disk.write(position, data)
    with pytest.raises(JournalUnreadable, match=reason):
        read(disk)


def test_a_beginning_beyond_any_file_is_refused() -> None:
    disk = SectorDisk.fresh(SEGMENT, BOOT)
    checkpoint = Checkpoint(2, 2**63, BOOT)
    disk.write(checkpoint.position, checkpoint.encode())
    with pytest.raises(JournalUnreadable, match=f"begins at {2**63}"):
        read(disk)


def test_a_file_that_is_cut_off_in_its_header_is_refused() -> None:
    disk = SectorDisk.fresh(SEGMENT, BOOT)
    disk.truncate(SECTOR_BYTES)
    with pytest.raises(JournalUnreadable):
        read(disk)


def test_a_failed_write_is_an_error_and_no_record() -> None:
    first = life()
    first.admit("1")
    before, first.disk.failure = first.writer.end, OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        first.writer.append(ClientCredit("1#0", 5))
    assert first.writer.end == before


ACTS = ["admit", *["say"] * 8, "forget", *["sync"] * 2, "kill", *["cut"] * 2, "half"]


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(40, 120))
def test_a_power_cut_leaves_what_was_synced_and_nothing_that_was_not_written(
    seed: int, count: int
) -> None:
    """Any sectors since the last sync are lost, time and again, within a sync too."""
    chance, boot, names = Random(seed), 1, 0
    now = Life(SectorDisk.fresh(SEGMENT, bytes([boot]) * 16), 1, bytes([boot]) * 16)
    # How many tokens were ever written: of what was lost once, a later cut may leave more.
    ever: dict[str, int] = {}
    for act in ["admit", *chance.choices(ACTS, k=count), "cut"]:
        number = chance.randrange(2**16)
        there = sorted(each.partition("#")[0] for each in now.tokens)
        match act:
            case "admit":
                names += 1
                now.admit(str(names))
            case "say" if there:
                for _ in range(1 + number % 40):
                    now.say(there[number % len(there)])
            case "forget" if there:
                now.forget(there[number % len(there)])
            case "sync":
                now.sync()
            case "half":  # the cut comes between a sync and the checkpoint that follows it
                now.journal.begin_sync().carry_out(now.disk)
                now.synced = {name: list(tokens) for name, tokens in now.tokens.items()}
            case "kill":
                after = Life(now.disk, now.term + 1, bytes([boot]) * 16)
                assert after.tokens == now.tokens
                after.synced = now.synced
                after.go_on()
                now = after
            case "cut":
                boot += 1
                after = Life(now.disk.cut(chance), now.term + 1, bytes([boot]) * 16)
                assert after.contents.fault
                for name, tokens in now.synced.items():
                    assert after.tokens[name][: len(tokens)] == tokens
                for name, tokens in after.tokens.items():
                    assert tokens == [index * 31 % 1000 for index in range(len(tokens))]
                    assert len(tokens) <= ever[name]
                after.synced = {name: list(tokens) for name, tokens in after.tokens.items()}
                after.disk.sync()
                after.go_on()
                now = after
            case _:
                pass
        now.writer.check_invariants()
        for name, tokens in now.tokens.items():
            ever[name] = max(len(tokens), ever.get(name, 0))
