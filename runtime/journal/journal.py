"""Journal of a frontend's streams: what is promised to clients, written down before it is offered.

Between the frontend, which says what happens, and the writer, which appends records: for the
snapshots of streams that are due it keeps what records have said of each. A choice's tokens are the
ledger's own list, so that a token costs nothing here.

A stream that its client cannot come back to before its end is written whole when it has ended.

A journal that can take no more (`OSError`) is given up as a whole: streams go on without it, and a
successor finds an empty one rather than one with a hole.

Sans-IO but for `open_journal`: what to store goes to a `JournalMemory`.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import attrs

from ...engine.messages import AddRequest, FinishReason, RequestOutput
from ...transports.array import Frame
from ...transports.links.channel import Peer
from .memory import JournalFile, open_mapped_journal
from .reader import JournalContents, read_journal
from .records import (
    AdmissionRecord,
    ChoiceEnd,
    ClientCredit,
    Deletion,
    NamedValue,
    OwnRecord,
    Placement,
    StreamEnd,
)
from .streams import JournalChoice, JournalStream
from .writer import JournalLimits, JournalStatistics, JournalWriter

logger = logging.getLogger(__name__)


class TokenSink(Protocol):
    """Where a choice's output tokens are."""

    @property
    def token_ids(self) -> list[int]:
        """All that count so far, and later ones when they do."""


@attrs.frozen(kw_only=True)
class AdmissionNote:
    """What an API wants to find again of a request, by its name: see `AdmissionRecord`."""

    name: str
    surface: str
    body: bytes
    created_at: int
    is_resumable: bool


@attrs.define(eq=False)
class Journal:
    """The streams of one frontend; of one that it does not have, what happens is ignored."""

    writer: JournalWriter
    # Whether it was read to its end.
    is_whole: bool = True
    _streams: dict[str, JournalStream] = attrs.field(factory=dict, init=False)
    _choices: dict[str, JournalChoice] = attrs.field(factory=dict, init=False)
    # What the API keeps beside them.
    _values: dict[str, NamedValue] = attrs.field(factory=dict, init=False)
    # Streams that run and whose every step is written down.
    _open: set[str] = attrs.field(factory=set, init=False)
    _is_given_up: bool = attrs.field(default=False, init=False)

    @classmethod
    def resume(cls, writer: JournalWriter, contents: JournalContents) -> "Journal":
        """With the streams that a life before has left."""
        journal = cls(writer, not contents.fault)
        for name, stream in contents.streams.streams.items():
            journal._keep(stream)
            if stream.said is None:
                journal._open.add(name)
        journal._values = {name: each.record for name, each in contents.streams.values.items()}
        return journal

    # ---- a stream

    def streams(self) -> list[JournalStream]:
        """All that there are."""
        return list(self._streams.values())

    def admit(
        self,
        note: AdmissionNote,
        requests: Sequence[tuple[AddRequest, TokenSink]],
        credit: int | None,
    ) -> None:
        """A client's request was taken: its choices, each with the list of its tokens.

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
        )
        choices = [
            JournalChoice(request, sink.token_ids, is_written=note.is_resumable)
            for request, sink in requests
        ]
        stream = JournalStream(record, choices)
        self._keep(stream)
        if not note.is_resumable:
            return
        self._open.add(note.name)
        try:
            self._append(record)
        except BaseException:
            self._drop(stream)
            self._clean()  # to make room is the way to take the next one
            raise
        if credit is not None:
            for request, _ in requests:
                self.grant(request.request_id, credit)

    def end(self, name: str, said: bytes) -> None:
        """All of it has ended, and this is what its API wants known of that."""
        stream = self._streams.get(name)
        if stream is None or stream.said is not None:
            return
        is_written = _is_written(stream)
        stream.handle_end(said)
        self._open.discard(name)
        self._append(StreamEnd(name, said) if is_written else stream.snapshot())

    def forget(self, name: str) -> None:
        """Nothing of it is wanted any more."""
        stream = self._streams.get(name)
        if stream is not None:
            self._drop(stream)
            if _is_written(stream):
                self._append(Deletion(name))

    # ---- what the API keeps beside streams

    def values(self) -> dict[str, bytes]:
        """All by name, the oldest first."""
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
        """It is wanted no more."""
        if self._values.pop(name, None) is not None:
            self._append(Deletion(name))

    # ---- a choice

    def place(self, placement: Placement) -> None:
        """It is about to be sent to this engine."""
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
        """It ended here, and not by what its engine said."""
        choice = self._choices.get(request_id)
        if choice is not None and not choice.is_over:
            choice.end = ChoiceEnd(request_id=request_id, finish_reason=reason)
            choice.peer = None
            self._append_of(choice, choice.end)

    def append_message(
        self,
        peer: Peer,
        frame: Frame,
        outputs: Iterable[RequestOutput] = (),
        refused: Iterable[str] = (),
    ) -> None:
        """What an engine sent, of which the ledger has accepted something: these whole outputs.

        It drains and `refused` these. To be called before any of it is offered.
        """
        for output in outputs:
            choice = self._choices.get(output.request_id)
            if choice is not None:
                choice.note(output)
                choice.peer = None if choice.is_over else choice.peer
        for request_id in refused:
            if request_id in self._choices:
                self._choices[request_id].peer = None
        if not self._open:
            return
        try:
            self.writer.append_message(peer, frame)
            if self.writer.may_be_due:
                self._clean()
        except OSError as error:
            self._give_up(error)

    def statistics(self) -> JournalStatistics:
        """Counts of this moment."""
        return self.writer.statistics()

    def note_rebuilding(self, name: str | None) -> None:
        """This stream is being built again; None: no more is."""
        self.writer.note_rebuilding(name)

    # ---- writing

    def _keep(self, stream: JournalStream) -> None:
        self._streams[stream.admission.name] = stream
        self._choices.update((each.request.request_id, each) for each in stream.choices)

    def _drop(self, stream: JournalStream) -> None:
        name = stream.admission.name
        del self._streams[name]
        self._open.discard(name)
        for choice in stream.choices:
            del self._choices[choice.request.request_id]

    def _append_of(self, choice: JournalChoice, record: OwnRecord) -> None:
        if choice.is_written:
            self._append(record)

    def _append(self, record: OwnRecord) -> None:
        if self._is_given_up:
            return
        try:
            self.writer.append(record)
            self._clean()
        except OSError as error:
            self._give_up(error)

    def _clean(self) -> None:
        """Write snapshots of the streams that pin the oldest records."""
        for name in self.writer.due():
            stream = self._streams.get(name)
            self.writer.append(self._values[name] if stream is None else stream.snapshot())

    def _give_up(self, error: OSError) -> None:
        logger.error("the journal is given up: a successor of this frontend finds none: %s", error)
        self._is_given_up = True
        self._streams.clear()
        self._choices.clear()
        self._values.clear()
        self._open.clear()
        self.writer.abandon()


def _is_written(stream: JournalStream) -> bool:
    """Whether the journal has anything of it."""
    return stream.admission.is_resumable or stream.said is not None


@contextmanager
def open_journal(fd: int, term: int, limits: JournalLimits) -> Iterator[Journal]:
    """The journal in this memory, which is the caller's, for one term: whatever it has goes on.

    Raises `JournalUnreadable`, `OSError`.
    """
    contents = read_journal(JournalFile(fd))
    if contents.fault:
        logger.error("the journal ends before its end: %s", contents.fault)
    with open_mapped_journal(fd, contents.header.segment_bytes) as memory:
        writer = JournalWriter.resume(memory, contents, term, limits)
        yield Journal.resume(writer, contents)
