"""Fields that no table names: one line in the log for each name, nothing, or 400."""

import pytest

from triolet.api.openai.chat_requests import CHAT
from triolet.api.openai.fields.responses_fields import RESPONSES
from triolet.api.schema.fields import JsonObject
from triolet.api.schema.tables import EVENT_FIELDS, NAMES_MAX, UnknownFields
from triolet.api.settings import IGNORE, REFUSE

from ..fakes import make_application, open_client

CHAT_BODY = {"messages": [{"role": "user", "content": "a"}]}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "not known" in record.getMessage()]


def test_each_name_is_logged_once_and_escaped(caplog: pytest.LogCaptureFixture) -> None:
    fields = UnknownFields()
    for _ in range(3):
        fields.check(CHAT, {"temprature": 1, "stream_options": {"a\x1b[2J\n\u202e": 1}, "seed": 1})
    assert said(caplog) == [
        "the field 'temprature' of a request is not known, and ignored",
        "the field 'stream_options.a\\x1b[2J\\n\\u202e' of a request is not known, and ignored",
    ]


def test_names_are_bounded_in_number_and_length(caplog: pytest.LogCaptureFixture) -> None:
    fields = UnknownFields()
    fields.check(CHAT, {f"{number}{'x' * 10_000}": 1 for number in range(2 * NAMES_MAX)})
    lines = said(caplog)
    assert len(lines) == len(fields.names) == NAMES_MAX
    assert max(map(len, lines)) < 250
    assert lines[-1].endswith("no more names will be logged")


def test_fields_of_a_socket_event_are_known_there(caplog: pytest.LogCaptureFixture) -> None:
    event: JsonObject = {"type": "response.create", "stream_id": "a", "event_id": "b", "input": "c"}
    UnknownFields(REFUSE).check(RESPONSES, event, EVENT_FIELDS)
    UnknownFields(IGNORE).check(RESPONSES, {"inptu": "c"})
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT_BODY),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {**CHAT_BODY, "max_tokens": 5}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
async def test_every_protocol_refuses_where_it_is_asked_to(
    path: str, body: dict[str, object]
) -> None:
    async with open_client(make_application(unknown_fields=REFUSE)) as client:
        assert (await client.request("POST", path, body)).status == 200
        refused = await client.request("POST", path, {**body, "temprature": 1})
    assert refused.status == 400
    assert "temprature" in refused.error["message"]
