"""Reader of one served stream: a cursor in its record, woken when there is more.

A reader belongs to a connection, or to a lane of one; its stream is above all of them.

After the death of the machine the last moments of a journal may be missing, so that a reader comes
back by a position that its stream has not reached. Engines of the same numerics give the same
tokens, and with them the same positions, again, and the reader waits; of others they would be other
tokens, which is an error.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import attrs
import trio

from ...nurseries.tasks.parking import ParkingPlace
from ..access_log import Generated
from ..errors import ApiError, bad_field

# Size that a waiting reader passes over at a time; of no consequence but for how long that takes.
_PIECE = 1024


class PulledStream(Protocol):
    """Stream of a reader."""

    @property
    def has_more(self) -> bool:
        """Whether there is more to pull into the record."""

    def pull(self) -> None:
        """Do that; never raises."""

    def generated(self) -> Generated:
        """The result so far, for the access log."""


class StreamCursor(Protocol):
    """Cursor of a reader."""

    @property
    def is_ready(self) -> bool:
        """Whether there is something to take now."""

    @property
    def is_done(self) -> bool:
        """Whether everything was taken, and nothing more comes."""

    @property
    def position(self) -> int | str | None:
        """Position of what was taken last; None before that."""

    def is_beyond(self, position: Any, /) -> bool:
        """Whether this position may be yet to come."""

    def is_inexact(self, position: Any, /) -> bool:
        """Whether engines of other numerics have computed something up to this position."""

    def take(self, size_max: Any, /) -> Any:
        """Take what was added since, not much more than that."""


Cursor = TypeVar("Cursor", bound=StreamCursor)
Piece = TypeVar("Piece")


@attrs.define(eq=False)
class StreamReader(Generic[Cursor, Piece]):
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

    @property
    def position(self) -> Any:
        """Position behind what was taken."""
        return self.cursor.position

    def take(self, size_max: int | None = None) -> Piece:
        """The next parts; see `take` of the cursor."""
        if self.stream.has_more:
            self.stream.pull()
        piece: Piece = self.cursor.take(size_max)
        self._note_taken()
        return piece

    async def catch_up(self, position: Any) -> None:
        """Return when what was lost up to here is there again.

        Raises `ApiError` 410 where it will not be the same.
        """
        cursor = self.cursor
        while cursor.is_beyond(position) and not cursor.is_inexact(position):
            await self.wait_ready()
            self.take(_PIECE)
        if cursor.is_inexact(position):
            reason = "was lost with the machine, and another engine has gone on in another way"
            refused = bad_field("starting_after", reason, "events_lost")
            raise ApiError(410, refused.message, refused.code, param=refused.param)

    def _note_taken(self) -> None:
        if self.cursor.is_done:
            self.done.set()
