"""Reader of a completion of another frontend, by calls through the root; as `CompletionReader`."""

import attrs
import trio

from ...runtime.messages import ForeignVerb
from ..errors import ApiError, completion_not_found
from ..responses.foreign import ForeignResponses
from ..responses.verbs import ChunkBatch


@attrs.define(eq=False)
class ForeignCompletionReader:
    """Reads a completion of another frontend, batch by batch; it does not keep it from ending."""

    foreign: ForeignResponses
    completion_id: str
    principal: str
    position: str | None
    # Set when everything was taken.
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    # The batch that was fetched and not taken.
    _frames: bytes = attrs.field(default=b"", init=False)
    _is_last: bool = attrs.field(default=False, init=False)

    def wake_up(self) -> None:
        """Of no effect: its owner answers in a moment, if only that nothing has come."""

    async def wait_ready(self) -> None:
        """Return when there is something to take, all was taken, or nothing has come for a moment.

        Raises `ApiError`.
        """
        if not (self._frames or self._is_last):
            try:
                batch: ChunkBatch = await self.foreign.call(
                    ForeignVerb.CHUNKS, self.completion_id, self.principal, self.position
                )
            except ApiError as error:
                if error.status != 404:
                    raise
                raise completion_not_found(self.completion_id) from error
            self._frames, self._is_last = batch.frames.encode(), batch.is_last
            self.position = batch.position

    def take(self) -> bytes:
        """The batch that waits; the owner has bounded its size."""
        frames, self._frames = self._frames, b""
        if self._is_last:
            self.done.set()
        return frames
