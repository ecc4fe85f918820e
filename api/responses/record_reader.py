"""Cursor in the event log of one response: reads from any event number, merging waiting deltas.

Sans-IO. Any number of readers, each at its own pace, sees the same stream: waiting deltas of one
item come as one. A reader that was cut continues behind the last number that it saw, without gap
or repeat, whether that delta was merged or not.
"""

import bisect
from typing import Self

import attrs

from ..errors import bad_field
from ..openai.response_events import Delta, Mark, Part
from ..schema.fields import JsonObject
from .record import NUMBERS_OF_TOKEN, ResponseRecord


@attrs.define(eq=False)
class RecordReader:
    """A cursor in one record: gives every event behind its start once, in order."""

    record: ResponseRecord
    with_notices: bool = True

    # The last event that was taken, or behind which it began; None before the first.
    number: int | None = attrs.field(default=None, init=False)
    # Deltas that were saved by merging.
    merged: int = attrs.field(default=0, init=False)
    # Characters up to the cursor.
    _size: int = attrs.field(default=0, init=False)
    # The next delta, and the next mark.
    _delta: int = attrs.field(default=0, init=False)
    _mark: int = attrs.field(default=0, init=False)
    # Events of the next mark that are not wanted.
    _skipped: int = attrs.field(default=0, init=False)

    @classmethod
    def behind(
        cls, record: ResponseRecord, number: int | None = None, *, with_notices: bool = True
    ) -> Self:
        """A cursor behind the event of this number; before the first event when None.

        Raises `ApiError` for a number that no event of this response has had so far.
        """
        reader = cls(record, with_notices)
        reader.number = number
        if number is not None:
            reader._go_behind(number)
        return reader

    def _go_behind(self, number: int) -> None:
        record = self.record
        if number < 0:
            raise bad_field("starting_after", "must not be negative")
        if number > record.last_number:
            raise bad_field("starting_after", f"is beyond the last event, {record.last_number}")
        self._delta = bisect.bisect_right(record.numbers, number)
        self._mark = bisect.bisect_left(record.marks, number, key=lambda mark: mark.last_number)
        if self._mark < len(record.marks) and record.marks[self._mark].notice is None:
            # Notices that have this number, and come next, may not have been seen.
            mark = record.marks[self._mark]
            if mark.last_number == number:
                self._mark += 1
            else:
                self._skipped = max(0, number + 1 - mark.number)
        self._size = len(record.text_between(0, self._delta))

    @property
    def is_done(self) -> bool:
        """Everything up to and with the terminal event was taken."""
        return self.record.ending is not None and self._mark == len(self.record.marks)

    @property
    def position(self) -> int | None:
        """Number of the event that was read last."""
        return self.number

    def is_beyond(self, number: int) -> bool:
        """Whether the event of this number may be yet to come."""
        return number > self.record.last_number and self.record.ending is None

    def is_inexact(self, number: int) -> bool:
        """Whether engines of other numerics have computed something up to this event."""
        inexact_from = self.record.inexact_from
        return inexact_from is not None and number > inexact_from * NUMBERS_OF_TOKEN

    @property
    def lag(self) -> int:
        """Characters that were added and not taken yet."""
        return self.record.size - self._size

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something now."""
        record = self.record
        while self._delta < record.delta_count:
            if not record.is_silent(self._delta):
                return True
            self._delta += 1
        return self._next_mark() is not None

    def take(self, characters_max: int) -> list[Part]:
        """Take what was added since: deltas merged, and not much more characters than that.

        `is_ready` says whether there is more.
        """
        parts: list[Part] = []
        limit, record = self._size + characters_max, self.record
        while True:
            stop = self._take_marks(parts) if self._mark < len(record.marks) else record.delta_count
            if self._delta == stop or self._size >= limit:
                return parts
            delta = self._take_deltas(stop, limit - self._size)
            if delta is not None:
                parts.append(delta)
                self.number = delta.number

    def _take_marks(self, parts: list[Part]) -> int:
        """Take those that stand here; the delta before which the next one stands."""
        built: dict[int, JsonObject] = {}
        while (mark := self._next_mark()) is not None:
            if mark.place > self._delta:
                return mark.place
            self._mark += 1
            if mark.notice is None:
                self.number = mark.last_number
            events = self.record.events_of(mark, built)
            parts += events[self._skipped :] if self._skipped else events
            self._skipped = 0
        return self.record.delta_count

    def _next_mark(self) -> Mark | None:
        """The next one for this reader; those that it does not want are passed over."""
        marks = self.record.marks
        while self._mark < len(marks):
            mark = marks[self._mark]
            if self.with_notices or mark.notice is None:
                return mark
            self._mark += 1
        return None

    def _take_deltas(self, stop: int, characters_max: int) -> Delta | None:
        first, record = self._delta, self.record
        if stop - first > 1 and self.lag > characters_max:
            size = 0
            for end in range(first + 1, stop):
                size += len(record.text_between(end - 1, end))
                if size >= characters_max:
                    stop = end
                    break
        delta = record.delta(first, stop)
        self._delta = stop
        if delta is not None:
            self.merged += stop - first - 1
            self._size += len(delta.text)
        return delta
