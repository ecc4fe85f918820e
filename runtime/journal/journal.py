"""Journal of a frontend's streams: what is promised to clients, written down before it is offered.

Between the frontend, which says what happens, and the writer, which appends records: for the
snapshots of streams that are due it keeps what records have said of each. A choice's tokens are the
ledger's own list, so that a token costs nothing here.

When a stream has ended all of it is written as one record, and is kept nowhere else: if it is due,
its bytes are copied. One that its client cannot come back to before its end has no record before.

A journal that can take no more (`OSError`) is given up as a whole: streams go on without it, and a
successor finds an empty one rather than one with a hole.

Sans-IO but for `open_journal`: what to store goes to a `JournalMemory`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Protocol

import attrs

from ...engine.messages import AddRequest, FinishReason, RequestOutput
from ...transports.array import Frame
from ...transports.codec import MessageTooLarge
from ...transports.links.channel import Peer
from .memory import JournalFile, open_mapped_journal
from .reader import JournalContents, read_journal
from .records import (
    AdmissionRecord,
    ChoiceEnd,
    ClientCredit,
    Deletion,
    JournalUnreadable,
    NamedValue,
    OwnRecord,
    Placement,
)
from .stream import JournalChoice, JournalStream
from .writer import JournalLimits, JournalMemory, JournalStatistics, JournalWriter

logger = logging.getLogger(__name__)

# Suffix of the value that names `_lacking`; no stream or other value has a space in its name.
LACKING = " lacking"
# Written as one record; a successor that finds them still has bounds of its own.
PASSING_MAX = 16


class TokenSink(Protocol):
    """List of a choice's output tokens."""

    @property
    def token_ids(self) -> list[int]:
        """Tokens that count so far, and later ones when they do."""


@attrs.define(kw_only=True)  # a frozen class takes three times as long to make
class AdmissionNote:
    """Note that an API makes of a request, to find it again by name: see `AdmissionRecord`."""

    name: str
    surface: str
    body: bytes
    created_at: int
    is_resumable: bool


@attrs.define(eq=False)
class Journal:
    """The streams of one frontend; of one that it does not have, what happens is ignored."""

    writer: JournalWriter
    # Whether the journal was read to its end.
    is_whole: bool = True
    # Streams whose last records may be missing since a life in which `is_whole` was False, although
    # clients may have seen them: each until its end, through all lives that adopt it.
    _lacking: frozenset[str] = attrs.field(default=frozenset(), init=False)
    # Streams that have not ended; before `handle_adopted` the ended ones, too.
    _streams: dict[str, JournalStream] = attrs.field(factory=dict, init=False)
    _choices: dict[str, JournalChoice] = attrs.field(factory=dict, init=False)
    # Values that the API keeps beside the streams.
    _values: dict[str, NamedValue] = attrs.field(factory=dict, init=False)
    # Ids of choices that are not over: while there are any, messages of engines are appended. A
    # choice that is over is in records already, however long it stays.
    _open: set[str] = attrs.field(factory=set, init=False)
    # Ended streams to forget, of which nothing is written yet.
    _passing: list[str] = attrs.field(factory=list, init=False)
    _is_given_up: bool = attrs.field(default=False, init=False)
    # Why it was given up; empty while it is not.
    failure: str = attrs.field(default="", init=False)

    @classmethod
    def resume(cls, writer: JournalWriter, contents: JournalContents) -> "Journal":
        """Resume with the streams that a life before has left."""
        journal = cls(writer, not contents.fault)
        for name, stream in contents.streams.streams.items():
            if stream.load is not None:  # by then it may lie elsewhere
                stream.load = partial(writer.load_snapshot, name)
            journal._keep(stream)
            journal._open.update(_open_in(stream))
        journal._values = {name: each.record for name, each in contents.streams.values.items()}
        journal._note_lacking()
        return journal

    def _note_lacking(self) -> None:
        kept = self._values.get(LACKING)
        running = {name for name, stream in self._streams.items() if _open_in(stream)}
        known = set() if kept is None else set(kept.value.decode(errors="replace").splitlines())
        self._lacking = frozenset(running if not self.is_whole else running & known)
        if not self._lacking:
            self.forget_value(LACKING)
        elif self._lacking != known:  # by one record, as a life may end between two
            self.keep_value(LACKING, "\n".join(sorted(self._lacking)).encode())

    def may_lack(self, name: str) -> bool:
        """Whether clients may have seen more of this stream than was found."""
        return name in self._lacking

    # ---- a stream

    def streams(self) -> list[JournalStream]:
        """Streams that have not ended; of a life before the ended ones too, until it is adopted."""
        return list(self._streams.values())

    def handle_adopted(self) -> None:
        """Ended streams of the life before are needed no more but in their records.

        Those that lives have died of stay: their records do not say it.
        """
        for stream in self.streams():
            if stream.said is not None and not stream.rebuild_deaths:
                self._drop(stream)

    def admit(
        self,
        note: AdmissionNote,
        requests: Sequence[tuple[AddRequest, TokenSink]],
        credit: int | None,
        first: Placement | None = None,
    ) -> None:
        """A client's request was taken: its choices, each with the list of its tokens. They are
        about to be sent where the first one goes, as the attempts that they name, or wait.

        Raises `Overloaded`, `JournalStreamTooLarge`; then it is not written down.
        """
        if self._is_given_up:
            return
        record = AdmissionRecord.of(
            note.name,
            [request for request, _ in requests],
            surface=note.surface,
            body=note.body,
            created_at=note.created_at,
            is_resumable=note.is_resumable,
            engine=None if first is None else first.engine,
            numerics_id="" if first is None else first.numerics_id,
            bitwise=first is None or first.bitwise,
            client_credit=credit or 0,
        )
        choices = [_choice_of(record, first, *each) for each in requests]
        stream = JournalStream(record, choices)
        self._keep(stream)
        if not note.is_resumable:
            return
        self._open.update(_open_in(stream))
        try:
            self._append(record)
        except BaseException:
            self._drop(stream)
            self._clean()  # to make room is the way to take the next one
            raise

    def end(self, name: str, said: bytes) -> None:
        """End a stream, and record what its API wants known of that."""
        stream = self._streams.get(name)
        if stream is None or stream.said is not None:
            return
        self._drop(stream)
        stream.handle_end(said)
        self._append(stream.snapshot())

    def forget(self, *names: str) -> None:
        """Nothing of these is wanted any more, nor of those that were to be forgotten soon."""
        names += tuple(self._passing)
        self._passing.clear()
        for name in names:
            if name in self._streams:
                self._drop(self._streams[name])
        held = [name for name in names if self.writer.holds(name)]
        if held:
            self._append(Deletion(held))

    def forget_soon(self, name: str) -> None:
        """Forget a stream, with some others in one record: until then a successor finds it."""
        self._passing.append(name)
        if len(self._passing) == PASSING_MAX:
            self.forget()

    # ---- what the API keeps beside streams

    def values(self) -> dict[str, bytes]:
        """Values by name, the oldest first."""
        return {name: record.value for name, record in self._values.items()}

    def keep_value(self, name: str, value: bytes) -> None:
        """A successor finds it; its owner bounds how many there are. No stream has this name."""
        if self._is_given_up:
            return
        record = NamedValue(name, value)
        self._values.pop(name, None)
        self._values[name] = record
        self._append(record)

    def forget_value(self, name: str) -> None:
        """Forget a value."""
        if self._values.pop(name, None) is not None:
            self._append(Deletion([name]))

    # ---- a choice

    def place(self, placement: Placement) -> None:
        """Record that a choice is about to be sent to this engine."""
        choice = self._choices.get(placement.request_id)
        if choice is not None:
            choice.handle_placed(placement)
            self._append_of(choice, placement)

    def grant(self, request_id: str, credit: int) -> None:
        """The client takes its tokens up to this index."""
        choice = self._choices.get(request_id)
        if choice is not None:
            choice.client_credit = max(choice.client_credit, credit)
            self._append_of(choice, ClientCredit(request_id, credit))

    def end_choice(self, request_id: str, reason: FinishReason) -> None:
        """End a choice here, not by a message of its engine."""
        choice = self._choices.get(request_id)
        if choice is not None and not choice.is_over:
            choice.end = ChoiceEnd(request_id=request_id, finish_reason=reason)
            choice.peer = None
            self._append_of(choice, choice.end)
            self._open.discard(request_id)

    def append_message(
        self,
        peer: Peer,
        frame: Frame,
        outputs: Iterable[RequestOutput] = (),
        refused: Iterable[str] = (),
    ) -> None:
        """Append an engine's message, of which the ledger has accepted `outputs`, before any of it
        is offered. Drains both `outputs` and `refused`, which names the requests that it did not.
        """
        over: list[str] = []
        for output in outputs:
            choice = self._choices.get(output.request_id)
            if choice is not None:
                choice.note(output)
                if choice.is_over:
                    choice.peer = None
                    over.append(output.request_id)
        for request_id in refused:
            if request_id in self._choices:
                self._choices[request_id].peer = None
        if not self._open:
            return
        try:
            self.writer.append_message(peer, frame)
            if self.writer.may_be_due:
                self._clean()
            self._open.difference_update(over)
        except OSError as error:
            self._give_up(error)

    def statistics(self) -> JournalStatistics:
        """Counts of this moment."""
        found = self.writer.statistics()
        return attrs.evolve(found, used_bytes=0, streams=0) if self._is_given_up else found

    def note_rebuilding(self, name: str | None) -> None:
        """This stream is being built again; None: no more is."""
        try:
            self.writer.note_rebuilding(name)
        except OSError as error:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        """Write no more, as records cannot be kept: streams go on without. Idempotent."""
        if not self._is_given_up:
            self._give_up(error)

    # ---- writing

    def _keep(self, stream: JournalStream) -> None:
        self._streams[stream.name] = stream
        self._choices.update((each.request.request_id, each) for each in stream.live_choices)

    def _drop(self, stream: JournalStream) -> None:
        del self._streams[stream.name]
        for choice in stream.live_choices:
            del self._choices[choice.request.request_id]
            self._open.discard(choice.request.request_id)

    def _append_of(self, choice: JournalChoice, record: OwnRecord) -> None:
        if choice.is_written:
            self._append(record)

    def _append(self, record: OwnRecord) -> None:
        if self._is_given_up:
            return
        try:
            self.writer.append(record)
            self._clean()
        except (OSError, MessageTooLarge) as error:
            self._give_up(error)

    def _clean(self) -> None:
        """Write snapshots of the streams that pin the oldest records, and what is one record."""
        try:
            for name in self.writer.due():
                stream = self._streams.get(name)
                if stream is None:
                    self.writer.move(name)
                else:
                    self.writer.append(stream.snapshot())
        except (OSError, JournalUnreadable, MessageTooLarge) as error:
            self._give_up(error)

    def _give_up(self, error: OSError | JournalUnreadable | MessageTooLarge) -> None:
        logger.error("the journal is given up: a successor of this frontend finds none: %s", error)
        strerror = error.strerror if isinstance(error, OSError) else None
        self._is_given_up, self.failure = True, strerror or str(error)
        self._streams.clear()
        self._choices.clear()
        self._values.clear()
        self._open.clear()
        with suppress(OSError):  # of a disk that takes no word any more
            self.writer.abandon()


def _open_in(stream: JournalStream) -> list[str]:
    return [choice.request.request_id for choice in stream.live_choices if not choice.is_over]


def _choice_of(
    record: AdmissionRecord, first: Placement | None, request: AddRequest, sink: TokenSink
) -> JournalChoice:
    choice = JournalChoice.admitted(record, request, sink.token_ids)
    choice.is_written = record.is_resumable
    if first is not None:
        choice.handle_placed(first)
        choice.attempt = request.attempt
    return choice


# `open_mapped_journal`, or a double of it: of a descriptor and the bytes of a segment.
OpenMemory = Callable[[int, int], AbstractContextManager[JournalMemory]]


@contextmanager
def open_journal(
    fd: int, term: int, limits: JournalLimits, open_memory: OpenMemory = open_mapped_journal
) -> Iterator[Journal]:
    """The journal in this memory, which is the caller's, for one term: whatever it has goes on.

    Raises `JournalUnreadable`, `OSError`.
    """
    contents = read_journal(JournalFile(fd))
    if contents.fault:
        logger.error("the journal ends before its end: %s", contents.fault)
    with open_memory(fd, contents.header.segment_bytes) as memory:
        writer = JournalWriter.resume(memory, contents, term, limits)
        yield Journal.resume(writer, contents)
