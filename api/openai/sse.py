"""Server-sent events: the frames of Responses, and those of chat completions and completions.

Sans-IO. Frames are as OpenAI's SDKs read them (the HTML standard, 9.2); JSON has no line breaks, so
one `data:` line is enough. An `id:` is what a client that was cut off says to read on behind it.
"""

import msgspec

from ..schema.fields import JsonObject
from .response_events import ARGUMENTS_DELTA, DELTA, Delta, Part, encode_part

# Ends a stream of chunks; Responses streams end by their terminal event.
DONE = b"data: [DONE]\n\n"
_MESSAGE_HEAD = b"event: %b\nid: " % DELTA.encode()
_CALL_HEAD = b"event: %b\nid: " % ARGUMENTS_DELTA.encode()


def data_frame(value: JsonObject) -> bytes:
    """One event without a name, as chat completions use."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


def event_frame(part: Part) -> bytes:
    """One event named by its `type`, as Responses use; its id is its number, if it has one."""
    if isinstance(part, Delta):
        head = _MESSAGE_HEAD if part.item.name is None else _CALL_HEAD
        return b"%b%d\ndata: %b\n\n" % (head, part.number, encode_part(part))
    kind, number = part["type"], part.get("sequence_number")
    assert isinstance(kind, str)
    line = "" if number is None else f"id: {number}\n"
    return b"event: %b\n%bdata: %b\n\n" % (kind.encode(), line.encode(), encode_part(part))
