"""Adoption of responses: what the journal keeps of each, and each built again from that.

Its ids, event numbers and deltas are those of before, as they are a function of the request and
its tokens. One that has not ended is yet to be run. The runtime does not read the notes.
"""

import attrs
import msgspec

from ...engine.errors import EngineError
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import GenerationStream, Generator
from ...runtime.journal.journal import AdmissionNote
from ...runtime.journal.records import AdmissionRecord
from ...runtime.text.answer_format import AnswerFormat
from ...runtime.text.outputs import GenerationOutput, Usage
from ..errors import frontends_died
from ..openai.logprobs import make_formatter
from ..openai.response_events import Ending, ResponseEvents, Status
from ..openai.responses_request import read_response_request
from ..streams.adoption import Adoption, KeptRequest, is_long
from .history import Conversation, continued
from .record import ResponseRecord
from .response import Response

SURFACE = "responses"
LOST_CODE = "response_lost"


@attrs.frozen(kw_only=True)
class KeptResponseRequest(KeptRequest):
    """The body, and the conversation that it continues."""

    before: Conversation | None = None
    # The socket session that it is kept for alone.
    session: str = ""


@attrs.frozen(kw_only=True)
class KeptEnding:
    """The end, behind so many output tokens, by CLOCK_MONOTONIC; and for whom it is kept."""

    ending: Ending
    token_count: int
    ended_ns: int
    is_stored: bool
    session: str = ""
    is_keyed: bool = False
    # The prompt, which is not kept, had opened the model's reasoning.
    is_opened: bool = False


def is_resumable(response: Response) -> bool:
    """Whether a successor is to go on with it, so that it is written down as it comes."""
    request = response.request
    is_wanted = response.streaming or request.background or response.keep_s > 0
    return is_wanted or is_long(request.sampling)


def note_of(response: Response) -> AdmissionNote:
    """Note for a response's admission."""
    request = response.request
    is_keyed = response.is_keyed
    kept = KeptResponseRequest(
        values=request.values, before=response.before, session=response.session, is_keyed=is_keyed
    )
    return AdmissionNote(
        name=response.response_id,
        surface=SURFACE,
        body=msgspec.json.encode(kept),
        created_at=response.record.events.created_at,
        is_resumable=is_resumable(response),
    )


def kept_request(admission: AdmissionRecord) -> KeptResponseRequest:
    """Decode what `note_of` has noted. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(admission.body, type=KeptResponseRequest)


def said_of(response: Response, ended_ns: int) -> bytes:
    """Note of a response's end."""
    record = response.record
    assert record.ending is not None
    kept = KeptEnding(
        ending=record.ending,
        token_count=record.token_count,
        ended_ns=ended_ns,
        is_stored=response.request.store,
        session=response.session,
        is_keyed=response.is_keyed,
        is_opened=response.is_opened,
    )
    return msgspec.json.encode(kept)


def kept_ending(said: bytes) -> KeptEnding:
    """Decode what `said_of` has noted. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(said, type=KeptEnding)


def first_tokens(output: GenerationOutput, count: int) -> GenerationOutput:
    """The output without what is behind so many of its tokens."""
    texts = output.parts[:count]
    return GenerationOutput(
        "".join(texts),
        output.token_ids[:count],
        output.token_count - len(output.token_ids) + count,
        index=output.index,
        logprobs=None if output.logprobs is None else output.logprobs.between(0, count),
        texts=texts,
    )


# ---- and back


def rebuild(
    adopted: AdoptedStream, generator: Generator, *, answer_format: AnswerFormat
) -> Response:
    """The response, with its output and its end if it has ended.

    Raises `JournalUnreadable`, and what reading its request does, as `ApiError` or
    `msgspec.DecodeError`.
    """
    admission, adoption = adopted.admission, Adoption.of(adopted)
    kept, first = kept_request(admission), admission.requests[0]
    request = read_response_request(
        kept.values,
        model=generator.model_name,
        now=adoption.admitted_at,
        answer_format=answer_format,
    )
    request.values = {}
    events = ResponseEvents(
        response_id=admission.name,
        created_at=admission.created_at,
        model=generator.model_name,
        request=request,
        defaults=generator.sampling_defaults,
        formatter=make_formatter(generator.token_bytes, request.sampling.logprobs),
    )
    response = Response(
        ResponseRecord(events),
        first.principal,
        continued(kept.before, request),
        session=kept.session,
        is_keyed=kept.is_keyed,
    )
    response.adoption, generation = adoption, adopted.generation
    if generation is None:  # two lives have died of it
        error = frontends_died("response", LOST_CODE)
        response.adoption = attrs.evolve(adoption, parts=())
        response.end(Ending(status=Status.FAILED, usage=Usage(0, 0), error=error))
    elif adopted.said is None:
        response.note_prompt(generator, generation)
    else:
        _rebuild_end(response, generation, kept_ending(adopted.said))
        adopted.close()
    return response


def _rebuild_end(response: Response, generation: GenerationStream, kept: KeptEnding) -> None:
    if kept.is_opened:
        response.open_reasoning()
    if response.request.generate:
        _read(generation, response.record, kept)
        response.record.inexact_from = generation.choices[0].inexact_from
    response.adoption = Adoption(response.admitted_at, ended_ns=kept.ended_ns)
    response.end(kept.ending)


def _read(generation: GenerationStream, record: ResponseRecord, kept: KeptEnding) -> None:
    """Read all tokens up to the end; what came behind it was never shown."""
    try:
        while (output := generation.take_nowait()) is not None:
            room = kept.token_count - record.token_count
            record.append(first_tokens(output, room) if len(output.token_ids) > room else output)
            if output.finish_reason is not None:
                return
    except EngineError:
        pass  # so it ended
