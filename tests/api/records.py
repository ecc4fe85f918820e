"""Records of responses for tests: made of a request and texts, without a task that runs them."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from triolet.api.openai.logprobs import make_formatter
from triolet.api.openai.response_events import Ending, Event, Part, ResponseEvents, Status, event_of
from triolet.api.openai.responses_request import ResponseRequest, read_response_request
from triolet.api.responses.history import Conversation
from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.response import Response
from triolet.runtime.text.outputs import GenerationOutput, Usage

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
    return read_response_request({"input": "hi", **values}, model="toy", has_tools=True)


def make_events(request: ResponseRequest, response_id: str = "resp_1") -> ResponseEvents:
    formatter = make_formatter(spell, request.sampling.logprobs)
    return ResponseEvents(
        response_id=response_id, created_at=5, model="toy", request=request, formatter=formatter
    )


def make_record(response_id: str = "resp_1", **values: Any) -> ResponseRecord:
    return ResponseRecord(make_events(make_request(**values), response_id))


def make_live(
    response_id: str = "resp_1", principal: str = "p", session: object = None, **values: Any
) -> Response:
    conversation = Conversation([{"role": "user", "content": "hi"}])
    record = make_record(response_id, **values)
    return Response(record, principal, conversation, session=session)


def say(record: ResponseRecord, *texts: str) -> None:
    """A token for each text, all at once; their ids count up from 0."""
    first = record.token_count
    ids = list(range(first, first + len(texts)))
    alternatives = record.events.request.sampling.logprobs
    logprobs = None if alternatives is None else make_logprobs(ids, alternatives)
    record.append(
        GenerationOutput(
            "".join(texts),
            ids,
            record.token_count + len(ids),
            logprobs=logprobs,
            texts=None if len(texts) == 1 else list(texts),
        )
    )
