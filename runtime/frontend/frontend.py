"""A served model behind one call: prompts in, streams of text out, whoever runs the engines.

Implements `generation.Generator` over a `CoreClient`: embedded it lives in the caller's process,
under `serve` in every frontend process. Entering `generate` admits and submits, leaving it aborts
and releases, whatever happened between. Must not know HTTP, sockets or how engines are started.
"""

import math
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from ...engine.errors import (
    EngineDraining,
    EngineError,
    InvalidParameter,
    InvalidRequest,
    PromptTooLong,
)
from ...engine.messages import AddRequest, FinishReason, RequestOutput
from ...engine.sampling_params import SamplingParams
from ...transports.credits import CreditWindow
from ..config import RuntimeSettings
from ..errors import ProcessingFailed, PromptRefused, RequestFailed
from ..text.input_processor import InputProcessor, PreparedPrompt
from ..text.logprobs import Logprobs
from ..text.output_processor import OutputProcessor
from .admission import Admission, Ticket, ignore_load
from .choice_slots import ChoiceSlots
from .choices import split_choices
from .core_client import CoreClient
from .generation import ChatPrompt, GenerationStream, Prompt
from .health import FrontendStatistics, Health, RuntimeStatistics
from .output_collector import MergedSlot
from .request_arguments import check_arguments
from .request_state import RequestStatus
from .stream_credit import StreamCredit


@attrs.define(eq=False)
class RequestFlow:
    """One request's way from accepted outputs to its consumer; a `core_client.RequestSink`."""

    request_id: str
    client: CoreClient
    processor: OutputProcessor
    slot: MergedSlot
    ticket: Ticket
    credit: StreamCredit
    stream: GenerationStream | None = None

    # The next token needs no look: it is not the first, and completes no stop string.
    _runs: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.slot.texts_of = self._texts_of

    def put_token(self, token_id: int) -> None:
        """Keep one token; it becomes text when it is taken."""
        if self._runs:
            self.slot.put_token(token_id)
            return
        self.put(
            RequestOutput(
                request_id=self.request_id,
                attempt=0,  # whichever: the ledger has judged it
                first_index=self.processor.token_count,
                token_ids=[token_id],
            )
        )

    def _texts_of(self, token_ids: list[int]) -> list[str]:
        try:
            return self.processor.handle_tokens(token_ids)
        except Exception as error:  # a firewall: whoever takes must not wonder whose fault it is
            raise ProcessingFailed(self.request_id, f"{type(error).__name__}: {error}") from error

    def put(self, output: RequestOutput) -> None:
        """Turn tokens into text; an error of the engine's fails the request alone."""
        if self._runs and _is_plain(output):
            self.slot.put_tokens(output.token_ids)
            return
        if output.token_ids:
            self.ticket.release_tokens()
            self._runs = not self.processor.searches
        if output.finish_reason is FinishReason.ERROR:
            if output.token_ids:  # they came before it
                self.put(attrs.evolve(output, finish_reason=None))
            if not self.slot.finished:
                self.slot.fail(error_of(self.request_id, output))
            return
        if self.stream is not None:
            self.stream.cached_tokens = max(self.stream.cached_tokens, output.cached_tokens)
            if output.prompt_logprobs is not None:
                self.stream.prompt_logprobs = Logprobs.of(output.prompt_logprobs)
        self.slot.settle()
        piece = self.processor.handle_output(output)
        self.slot.put(piece)
        if self.processor.stopped_here:
            self.client.stop(self.request_id)

    def end(self, reason: FinishReason) -> None:
        """End it here and now, and at its engine; what has come before stays."""
        self.client.abort(self.request_id)
        self.ticket.release_tokens()
        if self.slot.finished:
            return
        self.put(
            RequestOutput(
                request_id=self.request_id,
                attempt=0,
                first_index=self.processor.token_count,
                token_ids=[],
                finish_reason=reason,
            )
        )

    def fail(self, error: Exception) -> None:
        """The request ended with this error."""
        self.ticket.release_tokens()
        self.slot.fail(error)

    def consumed(self, token_count: int) -> float:
        """The consumer took so many output tokens in all: the engine may go further.

        Fewer than it says then are no news.
        """
        self._pass_on(self.credit.handle_consumed(token_count))
        return self.credit.grants_at

    def granted(self, tokens: int) -> None:
        """The consumer allows so many tokens more."""
        self._pass_on(self.credit.handle_granted(tokens))

    def _pass_on(self, credit: int | None) -> None:
        if credit is not None:
            self.client.grant(self.request_id, credit)


def _is_plain(output: RequestOutput) -> bool:
    """Whether it says no more than which tokens are next."""
    return bool(
        output.token_ids
        and output.finish_reason is None
        and output.logprobs is None
        and not (output.events or output.cached_tokens)
    )


def _merge_s(asked_s: float, params: SamplingParams, deadline_s: float) -> float:
    """Stop strings and deadlines end a request here, where all its tokens must be known."""
    return 0.0 if params.stop or deadline_s < math.inf else asked_s


def _make_stream(
    request_id: str, prompt_token_ids: list[int], flows: list[RequestFlow]
) -> GenerationStream:
    """What a reader sees of these, which are the choices of one prompt."""
    slots = [flow.slot for flow in flows]

    def grant(tokens: int) -> None:
        for flow in flows:
            flow.granted(tokens)

    stream = GenerationStream(
        request_id,
        prompt_token_ids,
        slots[0] if len(slots) == 1 else ChoiceSlots(slots),
        on_consumed=[flow.consumed for flow in flows],
        on_granted=grant,
        on_ended=lambda choice, reason: flows[choice].end(reason),
    )
    for flow in flows:
        flow.stream = stream
    return stream


def _charge(ticket: Ticket, prepared: PreparedPrompt, choices: int) -> None:
    """Raises `Overloaded`."""
    ticket.charge_tokens(choices * len(prepared.prompt_token_ids))
    if prepared.embeds is not None:
        ticket.charge_embeds(choices * prepared.embeds.data.nbytes)


def error_of(request_id: str, output: RequestOutput) -> EngineError:
    """Whose fault it is that an engine ended this request with an error, in the engine's words."""
    match output.error_code:
        case EngineDraining.code:
            return EngineDraining()
        case InvalidParameter.code:  # its sentence begins with the parameter's name
            parameter, _, reason = output.error.partition(" ")
            return InvalidParameter(parameter, reason)
        case PromptTooLong.code:
            return PromptRefused(output.error)
        case InvalidRequest.code:
            return InvalidRequest(output.error)
        case _:
            return RequestFailed(request_id, output.error)


@attrs.define(eq=False)
class Frontend:
    """See `generation.Generator`."""

    settings: RuntimeSettings
    client: CoreClient
    inputs: InputProcessor
    admission: Admission
    name: str
    # Called whenever a request came or went.
    on_load: Callable[[], None] = attrs.field(default=ignore_load, init=False)
    _prompt_tokens: int = attrs.field(default=0, init=False)
    _output_tokens: int = attrs.field(default=0, init=False)

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self.name

    @property
    def max_model_len(self) -> int:
        """The least of the ready engines' lengths, in tokens; the model's own while none is."""
        lengths = [member.ready.max_model_len for member in self.client.members() if member.ready]
        return min([self.inputs.max_model_len, *lengths])

    @asynccontextmanager
    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        principal: str = "",
        cache_salt: str = "",
        priority: int = 0,
        streaming: bool = True,
        events: bool = False,
        credit: int | None = None,
        deadline_s: float = math.inf,
        merge_s: float = 0.0,
    ) -> AsyncIterator[GenerationStream]:
        """Open one request; leaving the block ends it, wherever it is.

        Entering raises the `InvalidRequest` family, `Overloaded` or `NoEngine`; iterating the
        stream raises `EngineDied`, `RequestFailed`, or an `InvalidRequest` that only an engine
        sees. Cancellation at any point aborts.
        """
        request_id = request_id or f"request-{secrets.token_hex(8)}"
        check_arguments(
            {"request_id": request_id, "principal": principal, "cache_salt": cache_salt},
            {"deadline_s": deadline_s, "merge_s": merge_s},
            priority=priority,
            credit=credit,
            events=events,
        )
        deadline = trio.current_time() + deadline_s
        params = params or SamplingParams()
        with self._open_ticket(prompt, params.n) as ticket:
            prepared = await self.inputs.prepare(prompt, params, max_model_len=self.max_model_len)
            _charge(ticket, prepared, params.n)
            requests = split_choices(
                AddRequest(
                    request_id=request_id,
                    attempt=0,  # the ledger numbers it
                    prompt_token_ids=prepared.prompt_token_ids,
                    sampling=self.admission.with_seed(prepared.params),
                    eos_token_ids=list(self.inputs.eos_token_ids),
                    credit=self._stream_credit(credit, streaming=streaming).credit,
                    events=events,
                    principal=principal,
                    cache_salt=cache_salt,
                    priority=priority,
                    bad_words=prepared.bad_words,
                    merge_s=_merge_s(merge_s, params, deadline_s),
                    prompt_embeds=prepared.embeds,
                )
            )
            make_flow = partial(self._make_flow, ticket, credit, streaming=streaming)
            flows = [make_flow(request) for request in requests]
            stream = _make_stream(request_id, prepared.prompt_token_ids, flows)
            stream.deadline = deadline
            self.client.submit(list(zip(requests, flows, strict=True)))
            try:
                yield stream
            finally:
                self._close(stream, flows)

    def _close(self, stream: GenerationStream, flows: Sequence[RequestFlow]) -> None:
        """Whatever has not ended does; never waits."""
        for flow in flows:
            self.client.abort(flow.request_id)
            flow.stream = None  # it has the flow: a circle would wait for the collector
        stream.slot.close()
        self._prompt_tokens += len(stream.prompt_token_ids)
        self._output_tokens += stream.output_tokens

    def _stream_credit(self, granted: int | None, *, streaming: bool) -> StreamCredit:
        window = CreditWindow(self.settings.streams.window_tokens) if streaming else None
        return StreamCredit(window, granted)

    def _make_flow(
        self, ticket: Ticket, credit: int | None, request: AddRequest, *, streaming: bool
    ) -> RequestFlow:
        processor = OutputProcessor.make(self.inputs.tokenizer, request.sampling)
        return RequestFlow(
            request_id=request.request_id,
            client=self.client,
            processor=processor,
            slot=MergedSlot(only_when_finished=not streaming),
            ticket=ticket,
            credit=self._stream_credit(credit, streaming=streaming),
        )

    def _open_ticket(self, prompt: Prompt, choices: int) -> Ticket:
        tokens = choices * self.inputs.estimate_tokens(prompt)
        return self.admission.open_ticket(tokens, choices=choices, on_load=self.on_load)

    async def tokenize(self, prompt: str | ChatPrompt, *, add_special_tokens: bool) -> list[int]:
        """See `generation.Generator`."""
        return await self.inputs.tokenize(prompt, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """See `generation.Generator`."""
        return await self.inputs.detokenize(token_ids)

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """See `generation.Generator`."""
        return self.inputs.tokenizer.token_bytes(token_ids)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """See `generation.Generator`."""
        return self.inputs.tokenizer.token_strings(token_ids)

    def tokenizer_info(self) -> dict[str, object]:
        """See `generation.Generator`."""
        return self.inputs.info()

    def health(self) -> Health:
        """Ready means that at least one engine takes work now."""
        engines = self.client.health()
        ready = bool(self.client.balancer.engines) and not self.client.draining
        reasons = [engine.reason for engine in engines if engine.reason]
        if self.client.draining:
            reasons.append("this server is draining")
        return Health(live=True, ready=ready, engines=engines, reasons=reasons)

    def statistics(self) -> RuntimeStatistics:
        """The latest known counts of every engine, and this frontend's own."""
        ledger, admission = self.client.ledger, self.admission
        frontend = FrontendStatistics(
            requests_active=admission.active_requests,
            queued_tokens=admission.queued_tokens,
            requests_total=admission.admitted_total,
            requests_finished_total=ledger.ended[RequestStatus.FINISHED],
            requests_length_total=ledger.ended_by_length,
            requests_failed_total=ledger.ended[RequestStatus.FAILED],
            requests_aborted_total=ledger.ended[RequestStatus.ABORTED],
            requests_overloaded_total=admission.refused_total,
            requests_replayed_total=ledger.sent_again,
            prompt_tokens_total=self._prompt_tokens,
            output_tokens_total=self._output_tokens,
            outputs_refused_total={str(k): v for k, v in ledger.refused.items()},
            latencies=ledger.latencies,
        )
        engines = {peer.rank: counts for peer, counts in self.client.statistics.items()}
        return RuntimeStatistics(engines, frontend)

    def drain(self) -> None:
        """Take nothing new; what is in flight goes on."""
        self.client.draining = True
