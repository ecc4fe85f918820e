"""A prepared delta says what its object would say, whatever the text is."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.event_encoding import EventEncoder
from triolet.api.responses import DELTA


@given(
    st.text(),
    st.integers(0, 2**31),
    st.none() | st.lists(st.integers(0, 2**17), max_size=3),
    st.sampled_from([None, "a", "lane.1"]),
)
def test_a_delta_is_its_object(
    text: str, number: int, token_ids: list[int] | None, stream_id: str | None
) -> None:
    encoder = EventEncoder("msg_1", stream_id)
    expected = {
        "type": DELTA,
        "sequence_number": number,
        "output_index": 0,
        "item_id": "msg_1",
        "content_index": 0,
        "delta": text,
        "logprobs": [],
    }
    if token_ids is not None:
        expected |= {"token_ids": token_ids, "token_index": 7}
    if stream_id is not None:
        expected["stream_id"] = stream_id
    assert msgspec.json.decode(encoder.delta(number, text, token_ids, 7)) == expected


def test_other_events_get_their_lane() -> None:
    event = {"type": "response.created", "sequence_number": 0}
    assert msgspec.json.decode(EventEncoder("m").event(event)) == event
    assert msgspec.json.decode(EventEncoder("m", "a").event(event)) == {**event, "stream_id": "a"}
