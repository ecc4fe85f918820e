"""Frontend: the `Generator` over a `CoreClient`; prompts in, streams of text out.

Embedded it lives in the caller's process, under `serve` in every frontend process. Entering
`generate` admits and submits, leaving it aborts and releases, whatever happened between.
"""

import inspect
import math
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from ...engine.embeddings import REQUEST_BYTES_MAX
from ...engine.errors import InvalidParameter
from ...engine.messages import AddRequest
from ...engine.parameter_bounds import check_text
from ...engine.request_options import NO_OPTIONS, RequestOptions
from ...engine.sampling_params import SamplingParams
from ..config import PROCESSES_MAX, RuntimeSettings
from ..journal.journal import AdmissionNote
from ..text.detokenizer import OutputProcessor
from ..text.input_processor import InputProcessor, PreparedPrompt
from ..text.prompts import ChatPrompt, Prompt
from .admission import Admission, Ticket
from .core_client import CoreClient
from .generation import GenerationStream
from .health import FrontendStatistics, Health, RuntimeStatistics
from .ledger_entry import LedgerStatus, RequestState
from .output_collector import OutputCollector
from .request_flow import CreditWindow, RequestFlow, StreamCredit


def _charge(ticket: Ticket, prepared: PreparedPrompt, choices: int) -> None:
    """Raises `Overloaded`."""
    ticket.charge_tokens(choices * len(prepared.prompt_token_ids))
    if prepared.embeds is not None:
        ticket.charge_embeds(choices * prepared.embeds.data.nbytes)


@attrs.define(eq=False)
class Frontend:
    """Generator of this process; see `generation.Generator`."""

    settings: RuntimeSettings
    client: CoreClient
    inputs: InputProcessor
    admission: Admission
    # Clients' name for the model.
    model_name: str
    _prompt_tokens: int = attrs.field(default=0, init=False)
    _output_tokens: int = attrs.field(default=0, init=False)

    @property
    def max_model_len(self) -> int:
        """The least of the engines' lengths, in tokens; the model's own before any is known."""
        return int(min(self.inputs.max_model_len, self.client.engines.max_model_len))

    @property
    def max_logprobs(self) -> int:
        return self.inputs.max_logprobs

    @property
    def model_created_at(self) -> int:
        return self.inputs.created_at

    @property
    def sampling_defaults(self) -> SamplingParams:
        return self.inputs.defaults

    @asynccontextmanager
    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        request_id: str | None = None,
        principal: str = "",
        streaming: bool = True,
        note: AdmissionNote | None = None,
        **single_options: Any,
    ) -> AsyncIterator[GenerationStream]:
        """Open one request; leaving the block ends it, wherever it is.

        Single options, by their names, go before those in `options`.

        Raises as `Generator.generate` and `GenerationStream`. Cancellation at any point aborts.
        """
        request_id = request_id or f"request-{secrets.token_hex(8)}"
        check_text("request_id", request_id)
        check_text("principal", principal)
        params, options = params or SamplingParams(), options or NO_OPTIONS
        if single_options:
            options = attrs.evolve(options, **single_options)
        # Hosts' engines have whichever ranks are free.
        count = PROCESSES_MAX if self.settings.hosts.are_wanted else self.settings.engines
        check_engine(options.engine, count)
        sent, credit = options.sent(), options.credit
        if params.stop or options.deadline_s < math.inf:
            sent["merge_s"] = None  # each token is needed here at once
        deadline = trio.current_time() + options.deadline_s
        with self._open_ticket(prompt, params.n, principal) as ticket:
            prepared = await self._prepare(prompt, params, principal)
            _charge(ticket, prepared, params.n)
            requests = split_choices(
                AddRequest(
                    request_id=request_id,
                    attempt=0,  # the ledger numbers it
                    prompt_token_ids=prepared.prompt_token_ids,
                    sampling=self.admission.with_seed(prepared.params),
                    eos_token_ids=list(self.inputs.eos_token_ids),
                    credit=self._stream_credit(credit, streaming=streaming).credit,
                    principal=principal,
                    bad_words=prepared.bad_words,
                    prompt_embeds=prepared.embeds,
                    **sent,
                )
            )
            flows = [self._new_flow(add, ticket, credit, streaming=streaming) for add in requests]
            stream = GenerationStream(request_id, prepared.prompt_token_ids, flows, deadline)
            self.client.submit(list(zip(requests, flows, strict=True)), note=note, credit=credit)
            stream.states = states_of(flows)
            try:
                yield stream
            finally:
                self.close_stream(stream)

    async def _prepare(
        self, prompt: Prompt, params: SamplingParams, principal: str
    ) -> PreparedPrompt:
        length_max = self.max_model_len
        return await self.inputs.prepare(
            prompt, params, max_model_len=length_max, principal=principal
        )

    def close_stream(self, stream: GenerationStream) -> None:
        """Whatever has not ended does; never waits."""
        stream.close()
        self._prompt_tokens += len(stream.prompt_token_ids)
        self._output_tokens += stream.output_tokens

    def _stream_credit(self, granted: int | None, *, streaming: bool) -> StreamCredit:
        window = CreditWindow(self.settings.streams.window_tokens) if streaming else None
        return StreamCredit(window, granted)

    def _new_flow(
        self, request: AddRequest, ticket: Ticket, granted: int | None, *, streaming: bool
    ) -> RequestFlow:
        credit = self._stream_credit(granted, streaming=streaming)
        return self.make_flow(request, ticket, credit)

    def make_flow(self, request: AddRequest, ticket: Ticket, credit: StreamCredit) -> RequestFlow:
        """Between this request's outputs and their reader, who takes all at once without window."""
        processor = OutputProcessor.make(self.inputs.tokenizer, request.sampling)
        collector = OutputCollector(request.request_id, processor, credit.window is None)
        return RequestFlow(self.client, processor, collector, ticket, credit)

    def _open_ticket(self, prompt: Prompt, choices: int, principal: str) -> Ticket:
        tokens = choices * self.inputs.estimate_tokens(prompt)
        return self.admission.open_ticket(tokens, choices=choices, principal=principal)

    async def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool, principal: str = ""
    ) -> list[int]:
        """Token ids of a text or conversation, of any length; no engine is asked."""
        return await self.inputs.tokenize(
            prompt, add_special_tokens=add_special_tokens, principal=principal
        )

    async def detokenize(self, token_ids: Sequence[int], *, principal: str = "") -> str:
        """Text of token ids, special tokens included."""
        return await self.inputs.detokenize(token_ids, principal=principal)

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """Bytes of each token, special ones too; b"" for an id that the model lacks."""
        return self.inputs.tokenizer.token_bytes(token_ids)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Spelling of each token in the vocabulary; "" for an id that it does not have."""
        return self.inputs.tokenizer.token_strings(token_ids)

    def tokenizer_info(self) -> dict[str, object]:
        """Special tokens, the chat template, and sizes."""
        return self.inputs.info()

    def health(self) -> Health:
        """Ready means that at least one engine takes work now."""
        engines = self.client.engines.health()
        ready = bool(self.client.balancer.engines) and not self.client.draining
        reasons = [engine.reason for engine in engines if engine.reason]
        if self.client.draining:
            reasons.append("this server is draining")
        refused = [content.hex() for content in self.client.engines.membership.refused]
        return Health(live=True, ready=ready, engines=engines, reasons=reasons, refused=refused)

    def statistics(self) -> RuntimeStatistics:
        """The latest known counts of every engine, and this frontend's own."""
        ledger, admission = self.client.ledger, self.admission
        frontend = FrontendStatistics(
            requests_active=admission.active_requests,
            queued_tokens=admission.queued_tokens,
            requests_total=admission.admitted_total,
            requests_finished_total=ledger.ended[LedgerStatus.FINISHED],
            requests_length_total=ledger.ended_by_length,
            requests_failed_total=ledger.ended[LedgerStatus.FAILED],
            requests_aborted_total=ledger.ended[LedgerStatus.ABORTED],
            requests_overloaded_total=admission.refused_total,
            requests_waiting=len(ledger.replays),
            requests_replayed_total=ledger.sent_again,
            requests_migrated_total=ledger.migrated,
            requests_migrated_inexactly_total=ledger.migrated_inexactly,
            prompt_tokens_total=self._prompt_tokens,
            output_tokens_total=self._output_tokens,
            outputs_refused_total={str(k): v for k, v in ledger.refused.items()},
            link_mishaps_total={str(k): v for k, v in self.client.channel.mishaps.items()},
            latencies=ledger.latencies,
        )
        engines = {peer.rank: counts for peer, counts in self.client.statistics.items()}
        return RuntimeStatistics(engines, frontend)

    def drain(self) -> None:
        """Take nothing new; what is in flight goes on."""
        self.client.draining = True


def _with_options(signature: inspect.Signature) -> inspect.Signature:
    """Signature with each option in the place of the last parameter, which stands for them."""
    *others, _ = signature.parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(field.name, kind, default=field.default, annotation=field.type)
        for field in attrs.fields(RequestOptions)
    ]
    return signature.replace(parameters=[*others, *options])


# Shown by completion.
Frontend.generate.__signature__ = _with_options(  # type: ignore[attr-defined]
    inspect.signature(Frontend.generate)
)


def states_of(flows: Iterable[RequestFlow]) -> list[RequestState]:
    """States of the choices in flight, as the ledger goes on to have them."""
    entries = [flow.client.ledger.get(flow.request_id) for flow in flows]
    return [entry.state for entry in entries if entry is not None]


# Token ids of all choices together: some 16 MiB on their way, and as much at an engine.
CHOICE_TOKENS_MAX = 2**22


def check_engine(rank: int | None, engines: int) -> None:
    """Raises `InvalidParameter` for what is no rank of so many engines."""
    if rank is not None and rank >= engines:
        raise InvalidParameter("engine", f"must be the number of an engine, 0 to {engines - 1}")


def split_choices(request: AddRequest) -> list[AddRequest]:
    """Requests for each choice, in order; `request` itself if there is only one.

    They are named after it, and it is their `parent`. They share all but their number, on which the
    sampler's draws depend: with one seed they differ, and each is the same wherever and however
    often it runs. The prompt's logprobs come with the first alone. Raises `InvalidParameter` if
    they are too much together.
    """
    sampling = request.sampling
    count = sampling.n
    if count == 1:
        return [request]
    tokens = len(request.prompt_token_ids) + len(sampling.allowed_token_ids or ())
    if count * tokens > CHOICE_TOKENS_MAX:
        most = CHOICE_TOKENS_MAX // tokens
        raise InvalidParameter("n", f"must be at most {most} for a prompt of {tokens} tokens")
    embeds = request.prompt_embeds
    if embeds is not None and count * embeds.data.nbytes > REQUEST_BYTES_MAX:
        most, size = REQUEST_BYTES_MAX // embeds.data.nbytes, embeds.data.nbytes
        raise InvalidParameter("n", f"must be at most {most} for embeddings of {size} bytes")
    without_prompt = sampling
    if sampling.prompt_logprobs is not None:
        without_prompt = attrs.evolve(sampling, prompt_logprobs=None)
    return [
        attrs.evolve(
            request,
            request_id=f"{request.request_id}#{choice}",
            parent=request.request_id,
            choice=choice,
            sampling=without_prompt if choice else sampling,
        )
        for choice in range(count)
    ]
