"""Records of responses for tests: made of a request and texts, without a task that runs them."""

import itertools
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from triolet.api.access_log import AccessEntry
from triolet.api.application import Application
from triolet.api.errors import response_not_found
from triolet.api.openai.logprobs import make_formatter
from triolet.api.openai.response_events import Ending, Event, Part, ResponseEvents, Status, event_of
from triolet.api.openai.responses_request import ResponseRequest, read_response_request
from triolet.api.responses.history import Conversation
from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.response import Response, ResponseOrder
from triolet.api.responses.service import ResponseService
from triolet.api.settings import ServerLimits
from triolet.api.streams.books import StreamBooks
from triolet.api.streams.store import StreamStore
from triolet.runtime.text.answer_format import AnswerFormat
from triolet.runtime.text.outputs import GenerationOutput, Usage

from .answers import CALLS
from .fakes import FakeGenerator, make_logprobs

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


def make_request(*, answers: AnswerFormat = CALLS, **values: Any) -> ResponseRequest:
    return read_response_request({"input": "hi", **values}, model="toy", answer_format=answers)


def make_events(request: ResponseRequest, response_id: str = "resp_1") -> ResponseEvents:
    formatter = make_formatter(spell, request.sampling.logprobs)
    return ResponseEvents(
        response_id=response_id, created_at=5, model="toy", request=request, formatter=formatter
    )


def make_record(response_id: str = "resp_1", **values: Any) -> ResponseRecord:
    return ResponseRecord(make_events(make_request(**values), response_id))


def make_live(
    response_id: str = "resp_1",
    principal: str = "p",
    session: str = "",
    generator: FakeGenerator | None = None,
    **values: Any,
) -> Response:
    record = make_record(response_id, **values)
    order = ResponseOrder(
        stream_id=response_id,
        principal=principal,
        generator=generator or FakeGenerator(),
        request=record.events.request,
        asked_in=session,
    )
    return Response(order, record, Conversation([{"role": "user", "content": "hi"}]))


def make_store(limits: ServerLimits | None = None) -> StreamStore[Response]:
    return StreamStore(StreamBooks(limits or ServerLimits()), response_not_found)


def open_response(
    application: Application, request: ResponseRequest, principal: str = "p", **how: Any
) -> AbstractAsyncContextManager[Response]:
    order = application.responses.order(request, principal, **how)
    return application.responses.open(order)


def answered(
    service: ResponseService, request: ResponseRequest, principal: str = "p"
) -> AbstractAsyncContextManager[Response]:
    """A response to its end, in the caller's task."""
    return service.answer(service.order(request, principal, streaming=False), AccessEntry())


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


def check_invariants(record: ResponseRecord) -> None:
    """Numbers grow, sizes are sums, one item at most is open."""
    rows = [range(m.number, m.last_number + 1) for m in record.marks if m.notice is None]
    numbers = list(itertools.chain(*rows))
    voiced = [n for place, n in enumerate(record.numbers) if not record.is_silent(place)]
    assert sorted({*numbers, *voiced}) == sorted([*numbers, *voiced])
    assert list(record.numbers) == sorted(record.numbers)
    assert max([*numbers, *voiced]) == record.last_number
    assert record.size == len(record.text_between(0, record.delta_count))
    asked = record._asked
    assert asked.ids is None or len(asked.ids) == record.token_count
    assert len(record.numbers) == record.delta_count
    assert asked.ends is None or len(asked.ends) == record.delta_count
    places = [(mark.place, mark.number) for mark in record.marks]
    assert places == sorted(places)
    assert all(item.stop is not None for item in record.items[:-1])
