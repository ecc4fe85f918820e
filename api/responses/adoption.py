"""Adoption of responses: each is built again from what the journal of a frontend before kept of it.

Its ids, event numbers and deltas are those of before, as they are a function of the request and
its tokens. One that has not ended is yet to be run.
"""

from ...engine.errors import EngineError
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import GenerationStream, Generator
from ...runtime.text.answer_format import AnswerFormat
from ...runtime.text.outputs import Usage
from ..errors import frontends_died
from ..openai.logprobs import make_formatter
from ..openai.response_events import Ending, ResponseEvents, Status
from ..openai.responses_request import read_response_request
from .history import continued
from .kept import KeptEnding, first_tokens, kept_ending, kept_request
from .record import ResponseRecord
from .response import Response

LOST_CODE = "response_lost"


def rebuild(
    adopted: AdoptedStream, generator: Generator, *, answer_format: AnswerFormat
) -> Response:
    """The response, without its output yet.

    Raises what reading its request does, as `ApiError` or `msgspec.DecodeError`.
    """
    admission = adopted.admission
    kept, first = kept_request(admission), admission.requests[0]
    request = read_response_request(
        kept.values,
        model=generator.model_name,
        now=adopted.admitted_at,
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
        adopted=adopted,
        admitted_at=adopted.admitted_at,
    )
    if adopted.generation is not None and adopted.said is None:
        response.note_prompt(generator, adopted.generation)
    return response


def rebuild_end(response: Response) -> None:
    """Give it its output and its end, if it has ended.

    One that two lives have died of ends by that.
    """
    adopted = response.adopted
    assert adopted is not None
    generation = adopted.generation
    if generation is None:
        error = frontends_died("response", LOST_CODE)
        response.end(Ending(status=Status.FAILED, usage=Usage(0, 0), error=error))
    elif adopted.said is not None:
        kept = kept_ending(adopted.said)
        if kept.is_opened:
            response.open_reasoning()
        if response.request.generate:
            _read(generation, response.record, kept)
            response.record.inexact_from = generation.choices[0].inexact_from
        adopted.close()
        response.ended_ns = kept.ended_ns
        response.end(kept.ending)
    if response.has_ended:
        response.adopted = None  # all of it is in the record


def _read(generation: GenerationStream, record: ResponseRecord, kept: KeptEnding) -> None:
    """All tokens up to the end; what came behind it was never shown."""
    try:
        while (output := generation.take_nowait()) is not None:
            room = kept.token_count - record.token_count
            record.append(first_tokens(output, room) if len(output.token_ids) > room else output)
            if output.finish_reason is not None:
                return
    except EngineError:
        pass  # so it ended
