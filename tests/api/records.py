"""Records of responses for tests: what was asked and said, without anybody who runs it."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from triolet.api.openai.logprobs import make_teller
from triolet.api.openai.response_events import (
    Ending,
    Event,
    Part,
    ResponseEvents,
    ResponseIdentity,
    Status,
    event_of,
)
from triolet.api.openai.responses_request import ResponseRequest, read_response_request
from triolet.api.responses.history import Conversation
from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.response import LiveResponse
from triolet.api.responses.tool_record import ToolRecord
from triolet.runtime.frontend.generation import GenerationOutput, Usage

from .fakes import make_logprobs

COMPLETED = Ending(status=Status.COMPLETED, usage=Usage(3, 0))


class Reader(Protocol):
    def take(self, characters_max: int) -> list[Part]: ...


def taken(reader: Reader, characters_max: int = 2**30) -> list[Event]:
    """What a reader takes, as a client reads it."""
    events: list[Event] = as_read([event_of(part) for part in reader.take(characters_max)])
    return events


def as_read(value: object) -> Any:
    """JSON as a client reads it: parts of it may be text already."""
    return msgspec.json.decode(msgspec.json.encode(value))


def spell(token_ids: Sequence[int]) -> list[bytes]:
    """Each token is the character of its id."""
    return [chr(token_id).encode() for token_id in token_ids]


def make_request(**values: Any) -> ResponseRequest:
    return read_response_request({"input": "hi", **values}, model="toy")


def make_record(response_id: str = "resp_1", **values: Any) -> ResponseRecord:
    identity = ResponseIdentity(response_id=response_id, item_id="msg_1", created_at=5, model="toy")
    request = make_request(**values)
    teller = make_teller(spell, request.sampling.logprobs)
    return ResponseRecord(ResponseEvents(identity, request, teller))


def make_live(
    response_id: str = "resp_1", principal: str = "p", session: object = None, **values: Any
) -> LiveResponse:
    conversation = Conversation([{"role": "user", "content": "hi"}])
    record = make_record(response_id, **values)
    return LiveResponse(record, principal, conversation, session=session)


def say(record: ResponseRecord | ToolRecord, text: str, tokens: int = 1) -> None:
    first = record.token_count
    ids = list(range(first, first + tokens))
    alternatives = record.events.request.sampling.logprobs
    told = None if alternatives is None else make_logprobs(ids, alternatives)
    record.append(GenerationOutput(text, ids, first + tokens, logprobs=told))
