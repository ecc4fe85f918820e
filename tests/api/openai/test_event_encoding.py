"""A delta's bytes say what its object says, whatever the text is."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.openai.response_events import (
    DONE,
    Delta,
    Event,
    Item,
    data_frame,
    encode_part,
    event_frame,
)

from ..records import as_read

ITEMS = [Item(0, 'msg_é"1'), Item(3, "fc_1", "f", "call_1")]


@given(
    st.text(),
    st.integers(0, 2**31),
    st.none() | st.lists(st.integers(0, 2**17), max_size=3),
    st.sampled_from([None, "a", "lane.1"]),
    st.sampled_from(ITEMS),
)
def test_a_delta_is_its_object(
    text: str, number: int, token_ids: list[int] | None, stream_id: str | None, item: Item
) -> None:
    delta = Delta(item, number, text, token_ids, 7)
    if number % 2:
        entry = {"token": text, "logprob": -0.5, "bytes": [1], "top_logprobs": []}
        delta.logprobs = [msgspec.Raw(msgspec.json.encode(entry))]
    expected = as_read(delta.event())
    if stream_id is not None:
        expected["stream_id"] = stream_id
    assert msgspec.json.decode(encode_part(delta, stream_id)) == expected


def test_other_events_get_their_lane() -> None:
    event: Event = {"type": "response.created", "sequence_number": 0}
    assert msgspec.json.decode(encode_part(event)) == event
    assert msgspec.json.decode(encode_part(event, "a")) == {**event, "stream_id": "a"}


def test_frames() -> None:
    assert data_frame({"a": "line\nbreak"}) == b'data: {"a":"line\\nbreak"}\n\n'
    assert event_frame({"type": "t", "n": 1}) == b'event: t\ndata: {"type":"t","n":1}\n\n'
    assert DONE == b"data: [DONE]\n\n"
