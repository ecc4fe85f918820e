"""Adoption: a frontend goes on with the streams that the life before it left in its journal.

In this order, before its links begin: all requests into the ledger, as they were sent last, so that
the RESYNCs name them; then their tokens into their flows, where they become text when they are read
(those with stop strings or logprobs at once). What had ended is not even loaded until it is read
again: there may be thousands. Readers see one stream: the same tokens, in the same pieces of text.

A stream during whose adoption two lives have died is left alone: it would end every one. Only its
API hears of it still, to say so; if that ends two more, it is forgotten. A life that was killed
from outside has died of none: the root says so, see `journal.memory.forget_rebuilding`.
"""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import attrs
import trio

from ...engine.messages import (
    AddRequest,
    RequestEvent,
    RequestEventKind,
    RequestOutput,
    TokenLogprobs,
)
from ..journal.journal import Journal
from ..journal.records import AdmissionRecord
from ..journal.stream import JournalChoice, JournalStream
from ..text.outputs import Logprobs
from .admission import Ticket
from .frontend import Frontend, states_of
from .generation import GenerationStream
from .ledger_entry import LedgerEntry
from .request_flow import CreditWindow, RequestFlow, StreamCredit

REBUILD_DEATHS_MAX = 2


@attrs.define(eq=False)
class AdoptedStream:
    """A stream that goes on, or has ended and is to be read again."""

    _stream: JournalStream
    _frontend: Frontend
    _journal: Journal
    _ticket: Ticket | None = attrs.field(default=None, init=False)
    _flows: list[RequestFlow] = attrs.field(factory=list, init=False)
    _generation: GenerationStream | None = attrs.field(default=None, init=False)
    # By the life that had its end: its tokens are in the counters.
    _is_counted: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._is_counted = self.said is not None

    @property
    def generation(self) -> GenerationStream | None:
        """Output of the stream, made when it is first asked for; None if two lives have died of it.

        Raises `JournalUnreadable`.
        """
        if self._generation is None and self.begin():
            self.fill()
        return self._generation

    def begin(self) -> bool:
        """Make its output, which `fill` gives it; False if two lives have died of it."""
        stream, frontend = self._stream, self._frontend
        if stream.rebuild_deaths >= REBUILD_DEATHS_MAX:
            return False
        live = [choice for choice in stream.choices if not choice.is_over]
        self._ticket = _ticket_of(frontend, [choice.request for choice in live], len(live))
        self._flows = [_flow_of(frontend, choice, self._ticket) for choice in stream.choices]
        prompt = stream.choices[0].request.prompt_token_ids
        self._generation = GenerationStream(self.admission.name, prompt, self._flows)
        return True

    def choices(self) -> Iterator[tuple[JournalChoice, RequestFlow]]:
        """Journal and flow of each choice."""
        return zip(self._stream.choices, self._flows, strict=True)

    def fill(self) -> None:
        """Give the flows what has come of their choices."""
        assert self._generation is not None
        self._generation.states = states_of(self._flows)
        for (choice, flow), said in zip(self.choices(), self._generation.choices, strict=True):
            said.inexact_from = choice.numerics.inexact_from
            _fill(choice, flow)

    @property
    def name(self) -> str:
        """Name that the API has given."""
        return self._stream.name

    @property
    def surface(self) -> str:
        """Surface of the API that the client asked."""
        return self._stream.surface

    @property
    def admission(self) -> AdmissionRecord:
        """Admission of the stream, with its requests. Raises `JournalUnreadable`."""
        return self._stream.admission

    @property
    def admitted_at(self) -> float:
        """When, by trio's clock of this process."""
        return trio_time(self.admission.requests[0].admitted_ns)

    @property
    def said(self) -> bytes | None:
        """The API's note of the end; None before it."""
        return self._stream.said

    @property
    def size_bytes(self) -> int:
        """Size of the latest record, which is all of the stream when that has ended."""
        return self._stream.base_bytes

    @asynccontextmanager
    async def open(self) -> AsyncIterator[GenerationStream]:
        """Open the stream, as `Frontend.generate`: leaving the block ends what has not ended."""
        assert self.generation is not None
        try:
            yield self.generation
        finally:
            self.close()

    def close(self) -> None:
        """End what has not ended. Never waits."""
        if self._generation is not None:
            close = GenerationStream.close if self._is_counted else self._frontend.close_stream
            close(self._generation)
        if self._ticket is not None:
            self._ticket.__exit__()

    def forget(self) -> None:
        """Forget the stream, which cannot go on."""
        self.close()
        self._journal.forget(self.name)
        self.note_rebuilt()

    def note_rebuilding(self) -> None:
        """Count a death of this process by its own fault as one of this stream's, from now on."""
        self._journal.note_rebuilding(self.name)

    def note_rebuilt(self) -> None:
        """Note that the stream did not end this process."""
        self._journal.note_rebuilding(None)


def adopt_streams(frontend: Frontend, journal: Journal, died_ns: int = 0) -> list[AdoptedStream]:
    """Take over all streams of this journal. The life that had them ended then, by CLOCK_MONOTONIC,
    if it is known (not 0): since then they pause.

    To be called before the frontend's links begin.
    """
    adopted: list[AdoptedStream] = []
    for stream in journal.streams():
        if stream.rebuild_deaths >= 2 * REBUILD_DEATHS_MAX:
            journal.forget(stream.name)
        else:
            adopted.append(AdoptedStream(stream, frontend, journal))
    live = [each for each in adopted if each.said is None and each.begin()]
    journal.handle_adopted()
    choices = [pair for each in live for pair in each.choices()]
    for choice, flow in sorted(choices, key=lambda pair: pair[0].attempt):
        if not choice.is_over:
            entry = _write_down(frontend, choice, flow)
            if died_ns and entry.token_ids:
                entry.token_at = trio_time(died_ns)
            if entry.state.observer is not None:
                entry.state.observer.handle_adopted(trio_time(choice.request.admitted_ns))
    for each in live:
        each.note_rebuilding()
        each.fill()
    journal.note_rebuilding(None)
    return adopted


def _ticket_of(frontend: Frontend, waiting: list[AddRequest], choices: int = 0) -> Ticket:
    tokens = sum(len(request.prompt_token_ids) for request in waiting)
    embeds = [request.prompt_embeds for request in waiting if request.prompt_embeds is not None]
    principal = waiting[0].principal if waiting else ""
    ticket = frontend.admission.open_ticket(tokens, choices=choices, principal=principal)
    return ticket.take_over(sum(each.data.nbytes for each in embeds))


def _flow_of(frontend: Frontend, choice: JournalChoice, ticket: Ticket) -> RequestFlow:
    window = CreditWindow(frontend.settings.streams.window_tokens, len(choice.token_ids))
    is_limited = choice.client_credit or choice.request.credit == 0
    credit = StreamCredit(window, choice.client_credit if is_limited else None)
    flow = frontend.make_flow(choice.request, ticket, credit)
    flow.token_ids.extend(choice.token_ids)
    choice.token_ids = flow.token_ids  # the ledger writes into it from now on
    return flow


def trio_time(monotonic_ns: int) -> float:
    """When that was by trio's clock of this process; one of another boot is now."""
    age_ns = time.monotonic_ns() - monotonic_ns
    return trio.current_time() - max(0, age_ns) / 1e9


def _write_down(frontend: Frontend, choice: JournalChoice, flow: RequestFlow) -> LedgerEntry:
    request = attrs.evolve(
        choice.request,
        attempt=choice.attempt,
        # The admission of an earlier boot may be later than now: others would go before it.
        admitted_ns=min(choice.request.admitted_ns, time.monotonic_ns()),
        output_token_ids=list(choice.token_ids),
        credit=flow.credit.credit,
    )
    now, ledger = trio.current_time(), frontend.client.ledger
    return ledger.handle_adopted(request, choice.peer, now, flow, ready=choice.numerics)


def _fill(choice: JournalChoice, flow: RequestFlow) -> None:
    """Give a flow what has come of its choice."""
    is_detailed = choice.logprobs or choice.numerics.inexact_from is not None
    if not (is_detailed or flow.processor.searches or choice.is_over):
        flow.collector.cached_tokens = choice.cached_tokens
        if choice.prompt_logprobs is not None:
            flow.collector.prompt_logprobs = Logprobs.of(choice.prompt_logprobs)
        flow.adopt_tokens()
        return
    for output in _outputs_of(choice):
        flow.put(output)
    if choice.end is not None and not choice.stream_ended:
        flow.end(choice.end.finish_reason)


def _outputs_of(choice: JournalChoice) -> Iterator[RequestOutput]:
    """Outputs of engines for one choice, each token's end with the token; and from where on they
    were of other numerics."""
    pieces = _pieces_of(choice)
    end, begin = choice.engine_end, 0
    for place, (count, logprobs) in enumerate(pieces):
        output = RequestOutput(
            request_id=choice.request.request_id,
            attempt=choice.attempt,
            first_index=begin,
            token_ids=choice.token_ids[begin : begin + count],
            logprobs=logprobs,
        )
        if begin == 0:
            output.cached_tokens = choice.cached_tokens
            output.prompt_logprobs = choice.prompt_logprobs
        if end is not None and place == len(pieces) - 1:
            output.finish_reason, output.stop_token_id = end.finish_reason, end.stop_token_id
            output.error, output.error_code = end.error, end.error_code
            output.complete = end.complete
        if begin == choice.numerics.inexact_from:
            output.events = (RequestEvent(RequestEventKind.MIGRATED, exact=False),)
        begin += count
        if output.token_ids or output.finish_reason is not None or output.events:
            yield output


def _pieces_of(choice: JournalChoice) -> list[tuple[int, TokenLogprobs | None]]:
    """How many tokens might have come together, with their logprobs: in as few pieces as may be, as
    each costs what a hundred tokens in it do. But an engine's first tokens never come with
    another's.
    """
    count, inexact_from = len(choice.token_ids), choice.numerics.inexact_from
    if choice.logprobs:
        end = [(0, None)] if inexact_from == count else []
        return [*choice.logprobs.parts(inexact_from), *end]
    if inexact_from is None:
        return [(count, None)]
    return [(inexact_from, None), (count - inexact_from, None)]
