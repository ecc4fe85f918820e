"""Spans of requests: what happened to each, whatever died, below the span of its client."""

import contextvars
import random

import attrs
import pytest

from triolet.engine.messages import AddRequest, FinishReason, RequestOutput, StepOutputs
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.frontend.ledger import Ledger
from triolet.runtime.frontend.tracing import (
    SPANS_MAX,
    TraceIds,
    Tracer,
    TraceSpan,
    set_traceparent,
)
from triolet.runtime.journal.records import Placement
from triolet.transports.links.channel import Peer

ENGINE, OTHER = Peer("engine", 0, 1), Peer("engine", 1, 1)
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@attrs.define(eq=False)
class Bed:
    """A ledger that traces, with one request, `r`."""

    tracer: Tracer = attrs.field(factory=lambda: Tracer(random.Random(1)))
    ledger: Ledger = attrs.field(factory=lambda: Ledger(term=1))

    def __attrs_post_init__(self) -> None:
        self.ledger.begin_trace = self.tracer.begin

    def add(self, now: float, parent: str = "") -> AddRequest:
        request = AddRequest(
            request_id="r", attempt=0, prompt_token_ids=[1, 2], sampling=SamplingParams(seed=1)
        )

        def admit() -> AddRequest:
            set_traceparent(parent)
            return self.ledger.handle_add(request, ENGINE, now)

        return contextvars.copy_context().run(admit)

    def token(self, now: float, engine: Peer = ENGINE, *, end: FinishReason | None = None) -> None:
        entry = self.ledger.get("r")
        assert entry is not None
        output = RequestOutput(
            request_id="r",
            attempt=entry.attempt,
            first_index=len(entry.token_ids),
            token_ids=[7],
            finish_reason=end,
            prefill_s=0.25,
        )
        assert self.ledger.handle_outputs(engine, StepOutputs(1, [output]), now).outputs

    def die(self, now: float) -> None:
        self.ledger.handle_peer_gone(ENGINE, "died", now)

    def move(self, now: float) -> AddRequest:
        entry = self.ledger.get("r")
        assert entry is not None
        return self.ledger.handle_replay(entry, OTHER, now)

    def spans(self) -> list[TraceSpan]:
        return self.tracer.take(SPANS_MAX)


def times(spans: list[TraceSpan]) -> list[tuple[str, float, float]]:
    return [(span.name, span.begin_s, span.end_s) for span in spans]


def test_a_request_is_a_span_with_its_parts() -> None:
    bed = Bed()
    bed.add(10.0)
    bed.token(11.0)
    bed.token(12.0)
    bed.token(13.0, end=FinishReason.STOP)
    spans = bed.spans()
    assert times(spans) == [
        ("queue", 10.0, 10.75),
        ("prefill", 10.75, 11.0),
        ("decode", 11.0, 13.0),
        ("llm_request", 10.0, 13.0),
    ]
    whole = spans[-1]
    assert {span.ids.parent_id for span in spans[:-1]} == {whole.ids.span_id}
    assert {span.ids.trace_id for span in spans} == {whole.ids.trace_id}
    assert len({span.ids.span_id for span in spans}) == 4
    assert whole.ids.parent_id == ""
    assert whole.attributes == {
        "gen_ai.request.id": "r",
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 3,
        "end": "finished",
    }
    assert not any(span.error for span in spans)


def test_a_death_and_its_replay_are_spans() -> None:
    bed = Bed()
    bed.add(0.0)
    bed.token(1.0)
    bed.token(2.0)
    bed.die(2.5)
    bed.move(3.0)
    bed.token(4.0, OTHER)
    bed.ledger.handle_abort("r", 5.0)
    spans = bed.spans()[2:]
    assert times(spans) == [
        ("decode", 1.0, 2.0),
        ("death", 2.0, 2.5),
        ("replay", 2.5, 4.0),
        ("decode", 4.0, 5.0),
        ("llm_request", 0.0, 5.0),
    ]
    assert "died" in spans[1].error
    assert spans[2].attributes == {"engine": str(OTHER), "attempt": 2}
    assert spans[-1].attributes["end"] == "aborted"


def test_one_that_no_engine_goes_on_with_has_failed() -> None:
    bed = Bed()
    bed.add(0.0)
    bed.die(1.0)
    entry = bed.ledger.get("r")
    assert entry is not None
    bed.ledger.handle_give_up(entry, 9.0)
    (whole,) = bed.spans()
    assert (whole.name, whole.begin_s, whole.end_s) == ("llm_request", 0.0, 9.0)
    assert "died" in whole.error


def test_another_life_of_the_frontend_goes_on_with_the_trace() -> None:
    former = Bed()
    sent = former.add(0.0, f"00-{TRACE_ID}-{PARENT_ID}-01")
    former.token(1.0)
    begun = former.spans()
    bed = Bed(Tracer(random.Random(2)), Ledger(term=2))
    adopted = attrs.evolve(sent, output_token_ids=[7])
    numerics = Placement("r", 4, None, "numerics")
    entry = bed.ledger.handle_adopted(adopted, ENGINE, 103.0, ready=numerics)
    entry.token_at = 102.0
    assert entry.state.observer is not None
    entry.state.observer.handle_adopted(100.0)
    bed.token(104.0)
    bed.token(105.0, end=FinishReason.LENGTH)
    spans = bed.spans()
    assert times(spans) == [
        ("resume", 102.0, 104.0),
        ("decode", 104.0, 105.0),
        ("llm_request", 100.0, 105.0),
    ]
    whole = spans[-1].ids
    assert (whole.trace_id, whole.parent_id) == (TRACE_ID, PARENT_ID)
    parents = {span.ids.parent_id for span in (*begun, *spans[:-1])}
    assert parents == {whole.span_id}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"00-{TRACE_ID}-{PARENT_ID}",
        f"00-{'0' * 32}-{PARENT_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"ff-{TRACE_ID}-{PARENT_ID}-01",
        f"00-{TRACE_ID.upper()}-{PARENT_ID}-01",
    ],
)
def test_without_a_valid_parent_a_trace_begins_here(header: str) -> None:
    bed = Bed()
    ids = TraceIds.of_text(bed.add(0.0, header).trace)
    assert ids is not None
    assert ids.trace_id != TRACE_ID
    assert ids.parent_id == ""


def test_what_the_client_does_not_record_is_not_traced() -> None:
    bed = Bed()
    assert bed.add(0.0, f"00-{TRACE_ID}-{PARENT_ID}-00").trace == ""
    bed.token(1.0, end=FinishReason.STOP)
    assert bed.spans() == []


def test_spans_beyond_the_bound_are_dropped_and_counted() -> None:
    woken: list[int] = []
    tracer = Tracer(random.Random(1), lambda: woken.append(1))
    span = TraceSpan(ids=TraceIds("a", "b", ""), name="queue", begin_s=0.0, end_s=1.0)
    for _ in range(SPANS_MAX + 2):
        tracer.put(span)
    assert (tracer.dropped, len(woken)) == (2, 1)
    assert len(tracer.take(10)) == 10
    tracer.put(span)
    assert len(woken) == 1
    assert len(tracer.take(SPANS_MAX)) == SPANS_MAX - 9
    tracer.put(span)
    assert len(woken) == 2


def test_ids_that_no_tracer_made_are_none() -> None:
    assert TraceIds.of_text("") is None
    assert TraceIds.of_text("a-b-c") is None
    ids = TraceIds(TRACE_ID, PARENT_ID, "")
    assert TraceIds.of_text(str(ids)) == ids
