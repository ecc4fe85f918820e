"""Objects, events and ids of a response: endings, the echo of the request, bytes of events."""

from collections.abc import Sequence
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import engine_error
from triolet.api.openai.logprobs import make_formatter
from triolet.api.openai.response_events import (
    TERMINAL_TYPES,
    Delta,
    Ending,
    Event,
    Status,
    encode_part,
)
from triolet.api.openai.response_id import FRONTENDS_MAX, IdSource, frontend_of, response_id_of
from triolet.api.openai.response_items import Item
from triolet.api.openai.response_tools import CustomInput
from triolet.api.openai.tool_use import ToolOrigin
from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.record_reader import RecordReader
from triolet.runtime.text.outputs import Usage

from ..records import COMPLETED, as_read, make_record, make_request, say, spell


def end(status: Status, reason: str | None = None, **values: Any) -> list[Any]:
    error = engine_error() if status is Status.FAILED else None
    record = make_record(**values)
    if record.items:
        say(record, "a", "")
    seen = record.last_number
    record.end(Ending(status=status, usage=Usage(3, 50), reason=reason, error=error))
    return RecordReader.behind(record, seen).take(100)


@pytest.mark.parametrize(
    ("status", "reason", "terminal"),
    [
        (Status.COMPLETED, None, "response.completed"),
        (Status.INCOMPLETE, "max_output_tokens", "response.incomplete"),
        (Status.INCOMPLETE, "deadline", "response.incomplete"),
        (Status.CANCELLED, None, "response.incomplete"),
    ],
)
def test_endings(status: Status, reason: str | None, terminal: str) -> None:
    events = end(status, reason)
    last = events[-1]
    response = last["response"]
    assert [event["sequence_number"] for event in events] == [16, 17, 18, 19]
    assert (last["type"], response["status"]) == (terminal, status)
    assert response["incomplete_details"] == (reason and {"reason": reason})
    assert last["type"] in TERMINAL_TYPES.values()
    # What was said counts, not what the engine computed beyond.
    assert response["usage"]["output_tokens"] == 2


def test_the_end_formats_logprobs_once() -> None:
    calls: list[list[int]] = []

    def spell_noted(token_ids: Sequence[int]) -> list[bytes]:
        calls.append(list(token_ids))
        return spell(token_ids)

    request = make_request(include=["message.output_text.logprobs"])
    events = make_record().events
    formatter = make_formatter(spell_noted, 0)
    record = ResponseRecord(attrs.evolve(events, request=request, formatter=formatter))
    say(record, "a", "b")
    record.end(COMPLETED)
    last: list[Any] = RecordReader.behind(record, 16).take(100)
    assert calls == [[0, 1]]
    assert last[-1]["response"] == record.snapshot()
    assert last[-1]["response"]["output"] == [last[-2]["item"]]


def test_the_object_echoes_the_request() -> None:
    snapshot = make_record(background=True, previous_response_id="resp_0").snapshot()
    assert (snapshot["background"], snapshot["store"]) == (True, True)
    assert snapshot["previous_response_id"] == "resp_0"


ITEMS = [
    Item(0, 'msg_é"1'),
    Item(3, "fc_1", ToolOrigin("f"), "call_1"),
    Item(4, "ctc_1", ToolOrigin("c", is_custom=True), "call_2", CustomInput()),
]


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


RANDOM = "0123456789abcdef" * 2


@given(st.integers(0, FRONTENDS_MAX - 1))
def test_the_frontend_can_be_read_back(frontend: int) -> None:
    assert frontend_of(response_id_of(frontend, RANDOM)) == frontend


@pytest.mark.parametrize(
    "response_id",
    ["", "resp_0", f"resp_{RANDOM}", f"resp_+1{RANDOM}", f"resp_0A{RANDOM}", f"resp_01{RANDOM}\n",
     f"rs_01{RANDOM}", f"resp_01{RANDOM}0", f"resp_١١{RANDOM}"],
)  # fmt: skip
def test_what_we_did_not_draw_has_none(response_id: str) -> None:
    assert frontend_of(response_id) is None


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert frontend_of(text) is None


def test_each_draw_is_another_one() -> None:
    # More than are drawn from the system at once.
    ids = IdSource(7)
    drawn = [ids.draw_response_id() for _ in range(1000)]
    assert {frontend_of(response_id) for response_id in drawn} == {7}
    others = [ids.draw(kind) for kind in ("cmpl", "chatcmpl", "msg") for _ in range(500)]
    assert {frontend_of(completion_id) for completion_id in others} == {7}
    assert len({ids.draw_request_id() for _ in range(1000)}) == 1000
    assert len({drawn_id[-32:] for drawn_id in drawn + others}) == len(drawn) + len(others)
