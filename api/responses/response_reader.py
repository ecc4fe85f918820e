"""Reader of one response: a cursor in its record, woken when there is more.

It belongs to a connection, or to a lane of one; its response is above all of them.
"""

from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from ..openai.response_events import Part
from .record_reader import RecordReader


class ReadResponse(Protocol):
    """What a reader needs of its response."""

    @property
    def has_more(self) -> bool:
        """Whether there is more to pull into the record."""

    def pull(self) -> None:
        """Do that; never raises."""


@attrs.define(eq=False)
class ResponseReader:
    """A reader while it is attached. Without `wake` it waits by itself, in `wait_ready`."""

    response: ReadResponse
    cursor: RecordReader
    wake: "Wake | None"
    # Set when everything has been taken.
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ready: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        if self.cursor.is_done:
            self.done.set()

    @property
    def is_ready(self) -> bool:
        """Whether there may be something to take now."""
        return self.response.has_more or self.cursor.is_ready

    @property
    def number(self) -> int | None:
        """See `RecordReader.number`."""
        return self.cursor.number

    def wake_up(self) -> None:
        """There may be more."""
        if self.wake is None:
            self._ready.unpark_all()
        else:
            self.wake(self)

    async def wait_ready(self) -> None:
        """Return when there is something to take, nothing will come any more, or it was woken."""
        if not (self.done.is_set() or self.is_ready):
            await self._ready.park()

    def take(self, characters_max: int) -> list[Part]:
        """The next events; see `RecordReader.take`."""
        if self.response.has_more:
            self.response.pull()
        cursor = self.cursor
        events = cursor.take(characters_max)
        if cursor.is_done:
            self.done.set()
        return events


# Called when there is more for a reader; a writer that takes then.
Wake = Callable[[ResponseReader], None]
