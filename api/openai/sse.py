"""Server-sent events: the frames of Responses, of chat completions and of completions.

Sans-IO. Frames are as OpenAI's SDKs read them (the HTML standard, 9.2); JSON has no line breaks, so
one `data:` line is enough. An `id:` is what a client that was cut off says to read on behind it.
"""

from collections.abc import Callable

import attrs
import msgspec

from ..errors import ApiError
from ..schema.fields import JsonObject
from .response_events import Delta, Part, encode_part
from .response_items import ARGUMENTS_DELTA, INPUT_DELTA, MESSAGE, REASONING, SUMMARY

# Ends a stream of chunks; Responses streams end by their terminal event.
DONE = b"data: [DONE]\n\n"
_DELTAS = (ARGUMENTS_DELTA, INPUT_DELTA, MESSAGE.delta, REASONING.delta, SUMMARY.delta)
_DELTA_HEADS = {kind: b"event: %b\nid: " % kind.encode() for kind in _DELTAS}


def data_frame(value: JsonObject) -> bytes:
    """Frame of an event without a name, as in chat completions."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


@attrs.frozen
class Framing:
    """How the chunks of a completion become frames; `done` is the last one.

    `is_split`: a chunk may be several.
    """

    frames: Callable[[JsonObject], list[bytes]]
    error: Callable[[ApiError], bytes]
    done: bytes
    is_split: bool = False


CHUNK_FRAMING = Framing(
    lambda chunk: [data_frame(chunk)], lambda error: data_frame(error.body()), DONE
)


def event_frame(part: Part) -> bytes:
    """Frame of an event named by its `type`, as in Responses; its id is its number, if any."""
    if isinstance(part, Delta):
        head = _DELTA_HEADS[part.item.delta_type]
        return b"%b%d\ndata: %b\n\n" % (head, part.number, encode_part(part))
    kind, number = part["type"], part.get("sequence_number")
    assert isinstance(kind, str)
    line = "" if number is None else f"id: {number}\n"
    return b"event: %b\n%bdata: %b\n\n" % (kind.encode(), line.encode(), encode_part(part))
