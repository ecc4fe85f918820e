"""Event bytes: JSON of a response's events, and frames of server-sent events.

Sans-IO: what a reader was given in, bytes out. A delta comes for every token, so it is put together
from its constant parts instead of from an object, at a tenth of the CPU. Frames are as OpenAI's
SDKs read them (the HTML standard, 9.2); JSON has no line breaks, so one `data:` line is enough.
"""

import msgspec

from ..schema.fields import JsonObject
from .response_events import Delta, Item, Part

_encode = msgspec.json.encode


def encode_part(part: Part, stream_id: str | None = None) -> bytes:
    """One event, with the lane that it is said in."""
    if isinstance(part, Delta):
        item = part.item
        if item.delta_json is None:
            item.delta_json = _constant_parts(item)
        head, middle = item.delta_json
        more = b"" if stream_id is None else b',"stream_id":' + _encode(stream_id)
        if part.token_ids is not None:
            ids = (_encode(part.token_ids), part.token_index)
            more += b',"token_ids":%b,"token_index":%d' % ids
        if part.logprobs is not None:
            more += b',"logprobs":' + _encode(part.logprobs)
        elif item.name is None:
            more += b',"logprobs":[]'
        return b"%b%d%b%b%b}" % (
            head,
            part.number,
            middle,
            _encode(part.text),
            more,
        )
    if stream_id is not None:
        part = {**part, "stream_id": stream_id}
    return _encode(part)


def _constant_parts(item: Item) -> tuple[bytes, bytes]:
    content = b'"content_index":0,' if item.name is None else b""
    return (
        b'{"type":"%b","sequence_number":' % item.delta_type.encode(),
        b',"output_index":%d,"item_id":%b,%b"delta":'
        % (item.index, _encode(item.item_id), content),
    )


# Ends a chat stream; Responses streams end by their terminal event.
DONE = b"data: [DONE]\n\n"


def data_frame(value: JsonObject) -> bytes:
    """One event without a name, as chat completions use."""
    return b"data: " + _encode(value) + b"\n\n"


def event_frame(part: Part) -> bytes:
    """One event named by its `type`, as Responses use."""
    name = part.item.delta_type if isinstance(part, Delta) else part["type"]
    assert isinstance(name, str)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode_part(part))
