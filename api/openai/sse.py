"""Frames of server-sent events (the HTML standard, 9.2), as OpenAI's SDKs read them.

Sans-IO: JSON objects in, bytes out. JSON text has no line breaks, so one `data:` line is enough.
Must not know what the objects mean.
"""

import msgspec

from ..schema.fields import JsonObject
from .event_encoding import encode_part
from .response_events import Delta, Part

# Ends a chat stream; Responses streams end by their terminal event.
DONE = b"data: [DONE]\n\n"


def data_frame(value: JsonObject) -> bytes:
    """One event without a name, as chat completions use."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def event_frame(part: Part) -> bytes:
    """One event named by its `type`, as Responses use."""
    name = part.item.delta_type if isinstance(part, Delta) else part["type"]
    assert isinstance(name, str)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode_part(part))
