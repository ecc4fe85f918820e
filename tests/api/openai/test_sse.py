"""Server-sent events: names, ids and data of one frame."""

import msgspec

from triolet.api.openai.response_events import Delta
from triolet.api.openai.response_items import Item
from triolet.api.openai.response_tools import CustomInput
from triolet.api.openai.sse import DONE, data_frame, event_frame
from triolet.api.openai.tool_use import ToolOrigin

CUSTOM = Item(2, "ctc_1", ToolOrigin("c", is_custom=True), "call_2", CustomInput())


def test_an_event_has_its_type_as_name_and_its_number_as_id() -> None:
    assert event_frame({"type": "t", "n": 1}) == b'event: t\ndata: {"type":"t","n":1}\n\n'
    numbered = event_frame({"type": "t", "sequence_number": 0})
    assert numbered == b'event: t\nid: 0\ndata: {"type":"t","sequence_number":0}\n\n'


def test_so_has_a_delta() -> None:
    for item in (Item(0, "msg_1"), Item(1, "fc_1", ToolOrigin("f"), "call_1"), CUSTOM):
        name, number, data = event_frame(Delta(item, 17, "a\nb")).decode().split("\n", 2)
        assert (name, number) == (f"event: {item.delta_type}", "id: 17")
        event = msgspec.json.decode(data.removeprefix("data: ").removesuffix("\n\n"))
        assert (event["type"], event["sequence_number"]) == (item.delta_type, 17)
        assert event["delta"] == "a\nb"


def test_other_streams_have_no_names() -> None:
    assert data_frame({"a": "line\nbreak"}) == b'data: {"a":"line\\nbreak"}\n\n'
    assert DONE == b"data: [DONE]\n\n"
