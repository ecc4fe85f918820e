"""Reader of one served stream: a cursor in its record, woken when there is more.

A reader belongs to a connection, or to a lane of one; its stream is above all of them.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import attrs
import trio

from ...nurseries.tasks.parking import ParkingPlace
from ..access_log import Generated


class PulledStream(Protocol):
    """What a reader needs of its stream."""

    @property
    def has_more(self) -> bool:
        """Whether there is more to pull into the record."""

    def pull(self) -> None:
        """Do that; never raises."""

    def generated(self) -> Generated:
        """The result so far, for the access log."""


class StreamCursor(Protocol):
    """What a reader needs of its cursor."""

    @property
    def is_ready(self) -> bool:
        """Whether there is something to take now."""

    @property
    def is_done(self) -> bool:
        """Whether everything was taken, and nothing more comes."""


Cursor = TypeVar("Cursor", bound=StreamCursor)


@attrs.define(eq=False)
class StreamReader(Generic[Cursor]):
    """A reader while it is attached, of one task. Without `wake` it waits in `wait_ready`."""

    stream: PulledStream
    cursor: Cursor
    # Called with this reader when there is more; a writer that takes then.
    wake: Callable[[Any], None] | None = None
    # Set when everything has been taken.
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _place: ParkingPlace = attrs.field(factory=ParkingPlace, init=False)

    def __attrs_post_init__(self) -> None:
        self._note_taken()

    @property
    def is_ready(self) -> bool:
        """Whether there may be something to take now."""
        return self.stream.has_more or self.cursor.is_ready

    def wake_up(self) -> None:
        """There may be more."""
        if self.wake is None:
            self._place.wake()
        else:
            self.wake(self)

    async def wait_ready(self) -> None:
        """Return when there is something to take, nothing will come any more, or it was woken."""
        if not (self.done.is_set() or self.is_ready):
            await self._place.park()

    def _pull(self) -> None:
        """Before a surface's `take`."""
        if self.stream.has_more:
            self.stream.pull()

    def _note_taken(self) -> None:
        """Behind a surface's `take`."""
        if self.cursor.is_done:
            self.done.set()
