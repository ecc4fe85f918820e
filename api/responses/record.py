"""What one response has said so far, and cursors that read it from any number.

Sans-IO: outputs of the engine and one ending in, events out. The record keeps pieces of text, not
events: whoever reads gets events built anew, several waiting pieces merged into one delta. So any
number of readers, each as fast as it is, sees the same stream; one that was cut comes back with the
number that it saw last and goes on from there, without gap or repeat. A number within a piece (of
which no reader can have seen a part) means the whole piece.

Notices (what happened to the request, for those who asked) stand between the pieces and have no
number of their own: they carry the one before. A reader that resumes may see some of them twice.

The bound of a record is the length of the model: it keeps what was generated, once. Must not know
tasks, sockets or policies.
"""

import bisect
import itertools
from array import array
from collections.abc import Sequence

import attrs

from ...runtime.frontend.generation import GenerationOutput, Logprobs
from ...runtime.text.logprobs import join
from ..errors import bad_field
from ..openai.response_events import (
    LAST_OPENING_NUMBER,
    TERMINAL_DISTANCE,
    Delta,
    Ending,
    Event,
    Part,
    ResponseEvents,
)
from ..schema.fields import JsonObject

# The ends of a piece, in tokens and in characters; an array keeps some room to grow.
PIECE_BYTES = 10
# One notice, and the arrays of one piece's logprobs beside what is in them.
NOTICE_BYTES = 512
LOGPROBS_BYTES = 512


@attrs.define(eq=False)
class ResponseRecord:
    """Everything that one response says. Only one task appends; the order of calls is time."""

    events: ResponseEvents
    # Output tokens so far, those without text included.
    token_count: int = attrs.field(default=0, init=False)
    # Characters in all pieces.
    size: int = attrs.field(default=0, init=False)
    ending: Ending | None = attrs.field(default=None, init=False)

    # Pieces that make a delta, in order; when ended, they are joined into one, and `_offsets` says
    # where each ends: a str for each token would cost ten times as much.
    _texts: list[str] = attrs.field(factory=list, init=False)
    _offsets: "array[int] | None" = attrs.field(default=None, init=False)
    # The token count at the end of each piece, growing.
    _ends: "array[int]" = attrs.field(factory=lambda: array("I"), init=False)
    # All output tokens, if the request asked for them.
    _token_ids: "array[int] | None" = attrs.field(init=False)
    # Of each piece, if the request asked for them.
    _logprobs: list[Logprobs | None] | None = attrs.field(init=False)
    # (how many pieces came before, the notice), in order.
    _notices: list[tuple[int, Event]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._token_ids = array("I") if self.events.request.keeps_token_ids else None
        self._logprobs = None if self.events.request.sampling.logprobs is None else []

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return len(self._ends)

    @property
    def text(self) -> str:
        """The whole text so far."""
        return self.text_between(0, self.pieces)

    @property
    def token_ids(self) -> list[int] | None:
        """All output tokens, or None when they are not kept."""
        return None if self._token_ids is None else list(self._token_ids)

    @property
    def last_number(self) -> int:
        """The number of the last event that there is."""
        if self.ending is not None:
            return LAST_OPENING_NUMBER + self.token_count + TERMINAL_DISTANCE
        if not self.events.request.generate:
            return 1
        return LAST_OPENING_NUMBER + (self._ends[-1] if self._ends else 0)

    def append(self, output: GenerationOutput) -> None:
        """Note the next piece. One that completes no text is silent, unless ids were asked for."""
        assert self.ending is None
        self.token_count = output.token_count
        if self._token_ids is not None:
            self._token_ids.extend(output.token_ids)
        text = output.text
        if text or (output.token_ids and self._tells_tokens):
            self._texts.append(text)
            if self._logprobs is not None:
                self._logprobs.append(output.logprobs)
            self._ends.append(output.token_count)
            self.size += len(text)

    @property
    def _tells_tokens(self) -> bool:
        return self._logprobs is not None or self.events.request.options.token_ids

    @property
    def logprobs(self) -> Logprobs | None:
        """Of all output tokens so far, if the request asked for them."""
        return None if self._logprobs is None else join(self._logprobs)

    @property
    def extra_bytes(self) -> int:
        """What it takes to keep it, beside what was said: where each piece ends, and logprobs."""
        logprobs = sum(part.size_bytes for part in self._logprobs or () if part is not None)
        if self._logprobs is not None:
            logprobs += LOGPROBS_BYTES * len(self._logprobs)
        ids = len(self._token_ids or ())
        return PIECE_BYTES * self.pieces + 4 * ids + NOTICE_BYTES * len(self._notices) + logprobs

    def add_notice(self, event: Event) -> None:
        """Note what happened to the request, at this place among the pieces."""
        number = max(self.last_number, LAST_OPENING_NUMBER)
        self._notices.append((self.pieces, {**event, "sequence_number": number}))

    def end(self, ending: Ending) -> None:
        """Nothing is added any more. Makes the record small."""
        assert self.ending is None
        self.ending = ending
        self._offsets = array("I", itertools.accumulate(map(len, self._texts)))
        self._texts = ["".join(self._texts)]

    def snapshot(self) -> JsonObject:
        """The response object as it is now."""
        if self.ending is None:
            return self.events.snapshot("in_progress")
        return self.events.final(self.ending, self.text, self.token_count, self.logprobs)

    def reader(
        self, starting_after: int | None = None, *, with_notices: bool = True
    ) -> "RecordReader":
        """A cursor behind the event of this number; before the first event when None.

        Raises `ApiError` for a number that no event of this response has had so far.
        """
        after = -1 if starting_after is None else starting_after
        if after < 0 and starting_after is not None:
            raise bad_field("starting_after", "must not be negative")
        if after > self.last_number:
            raise bad_field("starting_after", f"is beyond the last event, {self.last_number}")
        return RecordReader(self, after, with_notices)

    # ---- for readers

    def text_between(self, first: int, stop: int) -> str:
        """The text of the pieces `[first, stop)`."""
        if self._offsets is None:
            return self._texts[first] if stop - first == 1 else "".join(self._texts[first:stop])
        begin = self._offsets[first - 1] if first else 0
        return self._texts[0][begin : self._offsets[stop - 1] if stop else 0]

    def delta(self, first: int, stop: int) -> Delta:
        """One delta of the pieces `[first, stop)`."""
        ids: Sequence[int] | None = None
        count = self._ends[stop - 1]
        if self._token_ids is not None and self.events.request.options.token_ids:
            ids = self._token_ids[self._ends[first - 1] if first else 0 : count]
        told = None if self._logprobs is None else join(self._logprobs[first:stop])
        return self.events.delta(self.text_between(first, stop), count, ids, told)

    def pieces_within(self, first: int, stop: int, characters_max: int) -> int:
        """Where to stop so that `[first, …)` has not much more characters than that."""
        size = 0
        for piece in range(first, stop):
            size += len(self.text_between(piece, piece + 1))
            if size >= characters_max:
                return piece + 1
        return stop

    def first_piece_after(self, number: int) -> int:
        """The first piece whose delta has a higher number."""
        return bisect.bisect_right(self._ends, number - LAST_OPENING_NUMBER)

    def first_notice_at(self, piece: int) -> int:
        """The first notice that stands before this piece or later."""
        return bisect.bisect_left(self._notices, piece, key=lambda notice: notice[0])

    def notice_at(self, index: int) -> tuple[int, Event] | None:
        """How many pieces come before this notice, and the notice; None when there is none."""
        return self._notices[index] if index < len(self._notices) else None

    def check_invariants(self) -> None:
        """For property tests: ends grow, sizes are sums, notices stand in order."""
        assert list(self._ends) == sorted(set(self._ends))
        assert not self._ends or self._ends[-1] <= self.token_count
        assert self.size == len(self.text)
        assert self._token_ids is None or len(self._token_ids) == self.token_count
        assert self._logprobs is None or len(self._logprobs) == self.pieces
        assert [place for place, _ in self._notices] == sorted(place for place, _ in self._notices)


@attrs.define(eq=False)
class RecordReader:
    """A cursor in one record: gives every event behind `after` once, in order."""

    record: ResponseRecord
    after: int
    with_notices: bool = True

    # Deltas that were saved by merging.
    merged: int = attrs.field(default=0, init=False)
    # Everything up to and with the terminal event was taken.
    is_done: bool = attrs.field(default=False, init=False)
    # Characters up to the cursor.
    _size: int = attrs.field(init=False)
    _opened: bool = attrs.field(init=False)
    _piece: int = attrs.field(init=False)
    _notice: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        record = self.record
        self._opened = self.after >= LAST_OPENING_NUMBER
        self._piece = record.first_piece_after(self.after)
        self._notice = record.first_notice_at(self._piece)
        self._size = len(record.text_between(0, self._piece))
        if record.ending is not None and self.after >= record.last_number:
            self.is_done = True

    @property
    def lag(self) -> int:
        """Characters that were said and not taken yet."""
        return self.record.size - self._size

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something now."""
        record = self.record
        return not self.is_done and (
            not self._opened
            or self._piece < len(record._ends)
            or record.ending is not None
            or (bool(record._notices) and self._next_notice is not None)
        )

    @property
    def _next_notice(self) -> tuple[int, Event] | None:
        return self.record.notice_at(self._notice) if self.with_notices else None

    def take(self, characters_max: int) -> list[Part]:
        """What has been said since: deltas merged, and not much more characters than that.

        Whatever is left then, `is_ready` says.
        """
        events: list[Part] = []
        if not self._opened:
            self._opened = True
            opening = self.record.events.opening()
            events += [event for event in opening if _number(event) > self.after]
        limit, record = self._size + characters_max, self.record
        while True:
            stop = self._take_notices(events) if record._notices else len(record._ends)
            if self._piece == stop:
                break
            if self._size >= limit:
                return events
            events.append(self._take_pieces(stop, limit - self._size))
        if self.record.ending is not None and not self.is_done:
            self.is_done = True
            events += self._end(self.record.ending)
        return events

    def _take_notices(self, events: list[Part]) -> int:
        """Take those that stand here; returns the piece before which the next one stands."""
        while (found := self._next_notice) is not None:
            place, event = found
            if place > self._piece:
                return place
            events.append(event)
            self._notice += 1
        return self.record.pieces

    def _take_pieces(self, stop: int, characters_max: int) -> Delta:
        first, record = self._piece, self.record
        if stop - first > 1 and self.lag > characters_max:
            stop = record.pieces_within(first, stop, characters_max)
        delta = record.delta(first, stop)
        self.merged += stop - first - 1
        self._size += len(delta.text)
        self._piece = stop
        return delta

    def _end(self, ending: Ending) -> list[Event]:
        record = self.record
        events = record.events.end(ending, record.text, record.token_count, record.logprobs)
        return [event for event in events if _number(event) > self.after]


def _number(event: Event) -> int:
    number = event["sequence_number"]
    assert isinstance(number, int)
    return number
