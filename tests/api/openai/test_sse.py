"""Frames of server-sent events."""

from triolet.api.openai.sse import DONE, data_frame, event_frame


def test_frames() -> None:
    assert data_frame({"a": "line\nbreak"}) == b'data: {"a":"line\\nbreak"}\n\n'
    assert event_frame({"type": "t", "n": 1}) == b'event: t\ndata: {"type":"t","n":1}\n\n'
    assert DONE == b"data: [DONE]\n\n"
