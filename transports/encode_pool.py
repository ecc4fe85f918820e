"""Keeps a few encode buffers for reuse, each until the transport is done with it.

Sans-IO: a list of buffers. Encoding a step's outputs 100 times a second into fresh memory costs
more in page faults than in encoding. A buffer that a zero-copy transport still reads must not be
written: it comes back when its *tracker* says done (as ZeroMQ's `MessageTracker`), or when the
caller releases it. Python guards the rest: a bytearray with a live view refuses to be resized.
"""

from collections import deque
from typing import Protocol

import attrs

from .array import Frame
from .codec import Codec


class Tracker(Protocol):
    """Says whether a transport still reads a buffer."""

    @property
    def done(self) -> bool:
        """True for ever once the buffer may be written again."""


@attrs.define(eq=False)
class EncodePool:
    """Buffers of one sending side. Not shared between threads.

    At most `buffers_max` buffers are kept, none larger than `buffer_bytes_max`: a rare huge
    message must not hold its memory for the life of the process. What is beyond is simply dropped.
    """

    buffers_max: int = attrs.field(default=16, validator=attrs.validators.ge(1))
    # 256 KiB: a step's outputs for 64 requests are 5 KB, an ADD of 32 k prompt tokens 150 KB.
    buffer_bytes_max: int = attrs.field(default=256 * 1024, validator=attrs.validators.ge(1))

    _free: list[bytearray] = attrs.field(factory=list, init=False)
    # Buffers with their trackers, oldest first; bounded by buffers_max as well.
    _in_flight: deque[tuple[bytearray, Tracker]] = attrs.field(factory=deque, init=False)
    reused: int = attrs.field(default=0, init=False)
    made: int = attrs.field(default=0, init=False)

    def encode(self, codec: Codec, message: object) -> list[Frame]:
        """Frames of `message`, the first in a buffer of the pool: `release` it after sending.

        A buffer that is never released is lost to the pool, nothing more. Raises what
        `Codec.encode` raises; the buffer is back in the pool then.
        """
        buffer = self._take()
        try:
            return codec.encode(message, buffer)
        except BaseException:
            self._keep(buffer)
            raise

    def release(self, frames: list[Frame], tracker: Tracker | None = None) -> None:
        """The transport has copied `frames`, or reads them until `tracker` is done."""
        buffer = frames[0]
        assert isinstance(buffer, bytearray), "these frames are not from a pool"
        if tracker is None or tracker.done:
            self._keep(buffer)
        elif len(self._in_flight) < self.buffers_max:
            self._in_flight.append((buffer, tracker))

    def check_invariants(self) -> None:
        """For tests and fuzzers: bounds hold and no buffer is in two places."""
        buffers = [*self._free, *(buffer for buffer, _ in self._in_flight)]
        assert len({id(buffer) for buffer in buffers}) == len(buffers)
        assert len(self._free) <= self.buffers_max
        assert len(self._in_flight) <= self.buffers_max

    def _take(self) -> bytearray:
        # A transport finishes messages of one peer in order; a slow peer at the head delays reuse,
        # it loses nothing.
        while self._in_flight and self._in_flight[0][1].done:
            self._keep(self._in_flight.popleft()[0])
        if self._free:
            self.reused += 1
            return self._free.pop()
        self.made += 1
        return bytearray()

    def _keep(self, buffer: bytearray) -> None:
        if len(self._free) < self.buffers_max and len(buffer) <= self.buffer_bytes_max:
            self._free.append(buffer)
