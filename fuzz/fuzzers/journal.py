"""Fuzzes the journal with drawn records, kills between and within stores, and spoiled bytes.

Invariant: a reader finds what was published, all of it where bytes are whole, and true as of some
record where they are spoiled; it never raises anything but that this is no journal.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import attrs

from ...engine.messages import StepOutputs
from ...runtime.journal.envelope import RecordHead
from ...runtime.journal.reader import JournalContents, Record, RecordWalk
from ...runtime.journal.records import (
    BEGIN_AT,
    FILL_AT,
    AdmissionRecord,
    Placement,
    Snapshot,
    SnapshotHead,
)
from ...runtime.journal.stream import JournalChoice
from ...runtime.journal.streams import JournalStreams
from ...runtime.journal.writer import JournalLimits, JournalMemory, JournalWriter
from ...transports.links.channel import Peer
from ..doubles.journal_acts import Act, apply
from ..doubles.journal_world import LIMITS, JournalWorld, Parts
from ..fuzzer import Fuzzer

DRAWN = (
    *("admit", "admit", "place", "place", "place", "say", "say", "say", "speak", "credit", "drain"),
    *("keep", "keep"),
    *("late", "end", "finish", "delete", "rebuild", "rebuild", "crash"),
    *("spoil", "spoil", "expose", "forge"),
)


def draw(chance: Random, count: int) -> list[Act]:
    """Acts are equally likely, as often as they are listed."""
    return [
        Act(chance.choice(DRAWN), chance.randrange(2**16), chance.randrange(2**32))
        for _ in range(count)
    ]


def check(acts: Sequence[Act], parts: Parts) -> Counter[str]:
    """Apply all acts, and look at each store of the last life at the end."""
    world = JournalWorld(parts)
    for act in acts:
        apply(world, act)
    world.look()
    return world.reached


class _Believing(RecordWalk):
    """Planted: checksums are not looked at."""

    def _is_good(self, head: RecordHead, record: memoryview) -> bool:
        return True


class _Unfenced(RecordWalk):
    """Planted: records of a lower term are taken."""

    def _next(self) -> Record | str:
        term, self.term = self.term, 0
        try:
            return super()._next()
        finally:
            self.term = term


class _Unnumbered(RecordWalk):
    """Planted: a record may follow any other one."""

    def _next(self) -> Record | str:
        number, self.number = self.number, 0
        try:
            return super()._next()
        finally:
            self.number = number


class _Stuttering(JournalStreams):
    """Planted: a row counts at any index."""

    def handle_message(self, sender: Peer, message: object) -> None:
        """Handle each token as if it were next."""
        if isinstance(message, StepOutputs):
            for place, attempt in enumerate(message.attempts):
                choice = self._placed.get(sender, {}).get(attempt)
                if choice is not None:
                    message.indices[place] = len(choice.token_ids)
                    super().handle_message(
                        sender, StepOutputs(1, [], [attempt], message.indices[place : place + 1],
                                            message.token_ids[place : place + 1])
                    )  # fmt: skip
            message = StepOutputs(1, message.outputs)
        super().handle_message(sender, message)


class _Credulous(JournalStreams):
    """Planted: outputs of older attempts count."""

    def handle_message(self, sender: Peer, message: object) -> None:
        """Handle all outputs as if they were of the present attempts."""
        if isinstance(message, StepOutputs):
            for output in message.outputs:
                choice = self.choice(output.request_id)
                if choice is not None and output.attempt < choice.attempt:
                    output.attempt = choice.attempt
        super().handle_message(sender, message)


class _Restless(JournalStreams):
    """Planted: what is over goes on."""

    def _displace(self, choice: JournalChoice) -> None:
        if not choice.is_over:
            super()._displace(choice)


class _Outliving(JournalStreams):
    """Planted: a stream's end ends none of its choices."""

    def handle_ended(
        self, head: SnapshotHead, base: int, base_bytes: int, load: Callable[[int, int], Snapshot]
    ) -> None:
        """Handle an end as if the stream's name were new."""
        self.streams.pop(head.admission.name, None)
        super().handle_ended(head, base, base_bytes, load)


class _Hesitant(JournalStreams):
    """Planted: an admission does not say to which engine it goes."""

    def _handle_admission(self, record: AdmissionRecord, base: int, base_bytes: int) -> None:
        super()._handle_admission(attrs.evolve(record, engine=None), base, base_bytes)


class _Welcoming(JournalStreams):
    """Planted: what is admitted twice counts twice."""

    def _is_new(self, record: AdmissionRecord, ids: list[str]) -> bool:
        return True


class _Adding(JournalStreams):
    """Planted: a snapshot's tokens are added to those that are there."""

    def _handle_snapshot(self, record: Snapshot, base: int, base_bytes: int) -> None:
        before = self.streams.get(record.admission.name)
        super()._handle_snapshot(record, base, base_bytes)
        if before is not None:
            after = self.streams[record.admission.name]
            for choice, earlier in zip(after.choices, before.choices, strict=False):
                choice.token_ids[:0] = earlier.token_ids


class _Exact(JournalStreams):
    """Planted: a snapshot does not keep from where on tokens are another engine's."""

    def _handle_snapshot(self, record: Snapshot, base: int, base_bytes: int) -> None:
        choices = [attrs.evolve(each, inexact_from=None) for each in record.choices]
        super()._handle_snapshot(attrs.evolve(record, choices=choices), base, base_bytes)


class _Moving(JournalStreams):
    """Planted: the latest engine of other numerics counts, not the first."""

    def _place(self, choice: JournalChoice, record: Placement) -> None:
        numerics = choice.numerics
        before, numerics.inexact_from = numerics.inexact_from, None
        super()._place(choice, record)
        if numerics.inexact_from is None:
            numerics.inexact_from = before


class _Pardoning(JournalStreams):
    """Planted: a snapshot forgives deaths."""

    def _handle_snapshot(self, record: Snapshot, base: int, base_bytes: int) -> None:
        super()._handle_snapshot(attrs.evolve(record, rebuild_deaths=0), base, base_bytes)


class _Recounting(JournalWriter):
    """Planted: a death counts again where the life that noted it died before the word was gone."""

    def _note_death(self, contents: JournalContents) -> None:
        super()._note_death(attrs.evolve(contents, term=0))


class _Clearing(JournalWriter):
    """Planted: the word is gone before the death is noted."""

    def _note_death(self, contents: JournalContents) -> None:
        self.note_rebuilding(None)
        super()._note_death(contents)


class _Hasty(JournalWriter):
    """Planted: a record is published before it is stored."""

    def _write(self, record: bytes) -> None:
        self.memory.publish(FILL_AT, self.end + len(record))
        super()._write(record)


class _Announcing(JournalWriter):
    """Planted: memory is given back before the beginning is published."""

    def _free(self) -> None:
        begin, freed = self._oldest(), self._floor(self.begin)
        if self._floor(begin) != freed:
            self.memory.free(freed, self._floor(begin))
            self.memory.publish(BEGIN_AT, begin)
            self.begin = begin


class _Greedy(JournalWriter):
    """Planted: memory is given back before the snapshots of its streams are published."""

    def due(self) -> list[str]:
        """Free up to what is behind these."""
        names = super().due()
        later = [base.position for name, base in self._bases.items() if name not in names]
        begin, freed = min(later, default=self.end), self._floor(self.begin)
        if names and self._floor(begin) > freed:
            self.memory.publish(BEGIN_AT, begin)
            self.memory.free(freed, self._floor(begin))
            self.begin = begin
        return names


class _Rounding(JournalWriter):
    """Planted: the beginning is a segment's, not a record's."""

    def _oldest(self) -> int:
        return self._floor(super()._oldest())


class _Forgetful(JournalWriter):
    """Planted: a later life numbers its records from one again."""

    @classmethod
    def resume(
        cls,
        memory: JournalMemory,
        contents: JournalContents,
        term: int,
        limits: JournalLimits | None = None,
    ) -> JournalWriter:
        """Resume with the number of the first record."""
        writer = super().resume(memory, contents, term, limits)
        writer.number = 0
        return writer


class _Idle(JournalWriter):
    """Planted: a later life does not clean what it finds."""

    def _note_death(self, contents: JournalContents) -> None:
        super()._note_death(contents)
        self._turn_at = contents.end + LIMITS.bytes_max


class _Stubborn(JournalWriter):
    """Planted: a journal that is full is cleaned only if it grows."""

    def _judge(self, admission: AdmissionRecord, size: int) -> None:
        turn_at = self._turn_at
        try:
            super()._judge(admission, size)
        finally:
            self._turn_at = turn_at


FUZZER = Fuzzer[Act, Parts](
    name="journal",
    invariant="a reader finds what was published, and nothing beyond the last good record",
    draw=draw,
    check=check,
    target=Parts(),
    faults={
        "checksums are not looked at": Parts(reader=_Believing),
        "records of a lower term are taken": Parts(reader=_Unfenced),
        "numbers are not looked at": Parts(reader=_Unnumbered),
        "a row counts at any index": Parts(streams=_Stuttering),
        "outputs of older attempts count": Parts(streams=_Credulous),
        "what is over goes on": Parts(streams=_Restless),
        "choices outlive their stream": Parts(streams=_Outliving),
        "an admission goes to no engine": Parts(streams=_Hesitant),
        "what is admitted twice counts twice": Parts(streams=_Welcoming),
        "a snapshot's tokens are added": Parts(streams=_Adding),
        "inexact_from is not kept in a snapshot": Parts(streams=_Exact),
        "inexact_from moves": Parts(streams=_Moving),
        "a snapshot forgives deaths": Parts(streams=_Pardoning),
        "a rebuild death counts twice": Parts(writer=_Recounting),
        "a rebuild death is lost": Parts(writer=_Clearing),
        "a record is published before it is stored": Parts(writer=_Hasty),
        "memory is freed before the beginning is published": Parts(writer=_Announcing),
        "memory is freed before snapshots are published": Parts(writer=_Greedy),
        "the beginning is no record's": Parts(writer=_Rounding),
        "a later life numbers from one": Parts(writer=_Forgetful),
        "a later life does not clean": Parts(writer=_Idle),
        "a journal that is full stays so": Parts(writer=_Stubborn),
    },
    round_events=80,
    smoke_rounds=60,
    reaches=frozenset(
        {
            "cleaned by a later life",
            *("crash", "exposed", "forged", "freed", "lost a stream", "moved", "snapshot"),
            *("inexact", "late", "rebuild death", "refused admission"),
            *("spoiled, stopped", "spoiled, whole", "unreadable"),
        }
    ),
)
