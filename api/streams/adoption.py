"""Adoption of streams: what the journal keeps of each request, and what a successor goes on with.

A request is kept as it came, so that the same reader reads it again; the runtime does not read it.
A stream that cannot be built again is given up, and a request with its key is not executed again.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import attrs
import msgspec

from ...engine.sampling_params import SamplingParams
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.journal.records import AdmissionRecord, JournalUnreadable
from ..errors import ApiError
from ..schema.fields import JsonObject
from .books import StreamBooks
from .claims import Standing
from .executions import UNREADABLE

logger = logging.getLogger(__name__)

# A whole answer without a key that may have so many tokens is gone on with by a successor. To write
# a request down takes 30 µs, 70 in a busy process: more than a short answer may cost, and that is
# soon computed again.
LONG_TOKENS = 64


Kept = TypeVar("Kept", bound="KeptRequest")


@attrs.frozen(kw_only=True)
class KeptRequest:
    """The body of a request; a surface may add to it."""

    values: JsonObject
    # Whether it has an idempotency key, so that its client may ask for it again.
    is_keyed: bool = False


def kept_request(admission: AdmissionRecord, kind: type[Kept]) -> Kept:
    """The request of this admission. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(admission.body, type=kind)


def is_long(sampling: SamplingParams, choices: int = 1) -> bool:
    """Whether it may have so many tokens that a successor is to go on with it."""
    return sampling.max_tokens is None or choices * sampling.max_tokens >= LONG_TOKENS


@attrs.frozen
class Adoption:
    """Stream that a life before has left, admitted then by trio's clock."""

    admitted_at: float
    # A part for each prompt; none once all is in the stream's record.
    parts: Sequence[AdoptedStream] = ()
    # When it ended, by CLOCK_MONOTONIC, if that was in that life.
    ended_ns: int | None = None

    @classmethod
    def of(cls, *parts: AdoptedStream) -> "Adoption":
        """Adopt a stream with these parts. Raises `JournalUnreadable`."""
        return cls(parts[0].admitted_at, parts)

    @property
    def is_lost(self) -> bool:
        """Whether two lives have died of it."""
        return any(part.generation is None for part in self.parts)

    def close(self) -> None:
        """End what has not ended. Never waits."""
        for part in self.parts:
            part.close()


@contextmanager
def rebuilding(
    stream_id: str, parts: Sequence[AdoptedStream], books: StreamBooks
) -> Iterator[None]:
    """Build a stream again in this block. One that cannot be read is given up, and the block ends.

    A death of this process meanwhile counts as one of this stream's.
    """
    parts[0].note_rebuilding()
    try:
        yield
    except (ApiError, JournalUnreadable, msgspec.MsgspecError) as failure:
        logger.error("%s cannot be read again: %s", stream_id, failure)
        books.bury(stream_id, Standing.LOST, UNREADABLE)
        for part in parts:
            part.forget()
    else:
        parts[0].note_rebuilt()
