"""Service of responses: orders, conversations that go on, and what clients ask of kept ones."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import attrs
import msgspec
import trio

from ...engine.errors import EngineError
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.messages import ForeignCall, ForeignVerb
from ...runtime.text.prompts import ChatPrompt, Prompt
from ..errors import ApiError, response_not_found, to_api_error
from ..openai.logprobs import make_formatter
from ..openai.response_events import Part, ResponseEvents
from ..openai.responses_request import AUTO, ResponseRequest, read_response_request
from ..schema.fields import JsonObject
from ..streams.adoption import Adoption, kept_request, rebuilding
from ..streams.foreign import ForeignReader
from ..streams.service import Claim, StreamService, unclaimed
from ..streams.store import StreamStore, Unread
from ..streams.stream_reader import StreamReader
from .adoption import KeptEnding, KeptResponseRequest
from .history import Conversation, continued, prompt_of
from .inputs import fitting, with_items
from .record import ResponseRecord
from .response import RESPONSE_BYTES, Response, ResponseOrder

Reader = StreamReader[Any, list[Part]] | ForeignReader[list[Part]]
Answer = TypeVar("Answer")


@attrs.define(eq=False)
class ResponseService(StreamService[ResponseOrder, Response, list[Part]]):
    """Service of a frontend."""

    verb: ClassVar[ForeignVerb] = ForeignVerb.EVENTS

    def __attrs_post_init__(self) -> None:
        self.store = StreamStore(self.streams.books, response_not_found)

    def join(self, parts: list[Any]) -> list[Part]:
        """Events are built already."""
        return parts

    # ---- orders

    def order(
        self,
        request: ResponseRequest,
        principal: str,
        claim: Claim = unclaimed,
        *,
        session: str = "",
        streaming: bool = True,
        is_keyed: bool = False,
    ) -> ResponseOrder:
        """Order a request; its id is what `claim` makes of a new one.

        `session` is the socket that asks; with `streaming` off all output comes at once.
        """
        streams = self.streams
        return ResponseOrder(
            stream_id=claim(streams.ids.draw_response_id),
            principal=principal,
            generator=streams.generator,
            request=request,
            streaming=streaming,
            asked_in=session,
            options=streams.settings.with_merging(request.options, streaming=streaming),
            is_keyed=is_keyed,
            is_noted=streams.books.journal is not None,
        )

    async def make(self, order: ResponseOrder) -> Response:
        """A response that was not admitted yet. Raises `ApiError`."""
        principal = order.principal
        if order.request.refers:
            order.request = await self._with_items(order.request, principal)
        request = order.request
        before = await self._conversation_before(request, principal, order.asked_in)
        conversation = continued(before, request)
        self.streams.ignored_tools.note(request.tools.given.ignored)
        prompt = await self._truncated(conversation, request, principal)
        record = self._record(order, int(time.time()))
        return Response(order, record, conversation, prompt=prompt, before=before)

    def _record(self, order: ResponseOrder, created_at: int) -> ResponseRecord:
        generator, request = order.generator, order.request
        events = ResponseEvents(
            response_id=order.stream_id,
            created_at=created_at,
            model=generator.model_name,
            request=request,
            defaults=generator.sampling_defaults,
            formatter=make_formatter(generator.token_bytes, request.sampling.logprobs),
        )
        return ResponseRecord(events)

    async def _with_items(self, request: ResponseRequest, principal: str) -> ResponseRequest:
        """The same with items in the place of references to them. Raises `ApiError`."""
        values = await with_items(request.values, principal, partial(self.ask, kind=JsonObject))
        read = self._read(values, trio.current_time())
        return attrs.evolve(read, came_at=request.came_at, stream_id=request.stream_id)

    def _read(self, values: JsonObject, now: float) -> ResponseRequest:
        streams = self.streams
        return read_response_request(
            values,
            model=streams.generator.model_name,
            now=now,
            answer_format=streams.answer_format,
        )

    async def _truncated(
        self, conversation: Conversation, request: ResponseRequest, principal: str
    ) -> Prompt | None:
        """The end of a conversation that is too long, if that is asked for. Raises `ApiError`."""
        if request.truncation != AUTO:
            return None
        prompt = prompt_of(conversation, *request.prompt_parts)
        if not isinstance(prompt, ChatPrompt):
            return None
        try:
            return await fitting(
                prompt, self.streams.generator, request.sampling.max_tokens, principal=principal
            )
        except EngineError as error:
            raise to_api_error(error, request.names) from error

    async def count_input_tokens(self, request: ResponseRequest, principal: str) -> int:
        """How many tokens the prompt of a response would have. Raises `ApiError`."""
        if request.refers:
            request = await self._with_items(request, principal)
        before = await self._conversation_before(request, principal, "")
        conversation = continued(before, request)
        prompt = await self._truncated(conversation, request, principal)
        prompt = prompt or prompt_of(conversation, *request.prompt_parts)
        if not isinstance(prompt, ChatPrompt):
            assert isinstance(prompt, Sequence)
            return len(prompt)
        try:
            tokens = await self.streams.generator.tokenize(
                prompt, add_special_tokens=False, principal=principal
            )
        except EngineError as error:
            raise to_api_error(error, request.names) from error
        return len(tokens)

    async def _conversation_before(
        self, request: ResponseRequest, principal: str, session: str
    ) -> Conversation | None:
        previous_id = request.previous_response_id
        if previous_id is None:
            return None
        try:
            if self.streams.foreign.is_foreign(previous_id):
                return await self.ask(
                    ForeignVerb.CONVERSATION, previous_id, principal, kind=Conversation
                )
            return self._conversation_of(previous_id, principal, session)
        except ApiError as error:
            raise _of_previous(error, previous_id) from error

    async def ask(
        self, verb: ForeignVerb, response_id: str, principal: str, *, kind: type[Answer]
    ) -> Answer:
        """Ask for a response, here or in another frontend. Raises `ApiError`."""
        return await self.streams.foreign.call(verb, response_id, principal, kind=kind)

    def _conversation_of(self, response_id: str, principal: str, session: str = "") -> Conversation:
        """The conversation with its output. Raises `ApiError`: 404, or it still runs."""
        response = self.store.find(response_id, principal, session)
        if not response.has_ended:
            raise still_running(response_id)
        return response.continued

    async def carry_out(self, call: ForeignCall) -> Any:
        """Do this with a response, or a key, of this frontend. Raises `ApiError`."""
        store, response_id, principal = self.store, call.response_id, call.principal
        match call.verb:
            case ForeignVerb.GET:
                return store.find(response_id, principal).record.snapshot()
            case ForeignVerb.CANCEL:
                response = store.cancel(response_id, principal, "cancelled by its client")
                await response.wait_ended()
                return response.record.snapshot()
            case ForeignVerb.DELETE:
                store.delete(response_id, principal)
                return {}
            case ForeignVerb.INPUT:
                return store.find(response_id, principal).conversation
            case ForeignVerb.CONVERSATION:
                return self._conversation_of(response_id, principal)
            case _:
                return await StreamService.carry_out(self, call)

    # ---- adoption

    def rebuild(self, stream_id: str, parts: list[AdoptedStream]) -> Response:
        """The response of a life before, with its output if it has ended."""
        (adopted,) = parts
        admission, adoption = adopted.admission, Adoption.of(adopted)
        kept = kept_request(admission, KeptResponseRequest)
        request = self._read(kept.values, adoption.admitted_at)
        request.values = {}
        order = ResponseOrder(
            stream_id=stream_id,
            principal=admission.requests[0].principal,
            generator=self.streams.generator,
            request=request,
            asked_in=kept.session,
            is_keyed=kept.is_keyed,
            is_noted=True,
        )
        record = self._record(order, admission.created_at)
        response = Response(order, record, continued(kept.before, request))
        response.adoption = adoption
        if adopted.said is not None:
            kept_end = msgspec.json.decode(adopted.said, type=KeptEnding)
            if (generation := adopted.generation) is None:
                response.end_as_lost()
            else:
                response.end_again(generation, kept_end)
                adopted.close()
        return response

    def keep_unread(self, adopted: AdoptedStream, said: bytes) -> None:
        """Keep a response without reading it, until it is asked for: there may be thousands."""
        kept = msgspec.json.decode(said, type=KeptEnding)
        books, name = self.streams.books, adopted.name
        is_wanted = bool(kept.is_stored or kept.session or kept.is_keyed)
        keep_s = books.kept_s(is_wanted=is_wanted, is_adopted=True)
        read = partial(self._read_again, adopted)
        unread = Unread(read, [name], kept.session, kept.is_keyed, keep_s)
        self.store.keep_unread(unread, RESPONSE_BYTES + adopted.size_bytes, kept.ended_ns)

    def _read_again(self, adopted: AdoptedStream) -> Response | None:
        """The response, with its output; None if it cannot be read again."""
        with rebuilding(adopted.name, [adopted], self.streams.books):  # given up, it ends with None
            return self.rebuild(adopted.name, [adopted])


def _of_previous(error: ApiError, previous_id: str) -> ApiError:
    """The same, about the field that named the response."""
    if error.code != "response_not_found":
        return attrs.evolve(error, param="previous_response_id")
    return ApiError(
        error.status,
        f"Previous response with id {previous_id[:100]!r} not found",
        "previous_response_not_found",
        param="previous_response_id",
    )


def still_running(response_id: str) -> ApiError:
    """The refusal to continue a response before its end."""
    return ApiError(
        400,
        f"The response {response_id[:100]!r} still runs; continue it when it has ended",
        "response_in_progress",
        param="previous_response_id",
    )
