"""Responses service: starts responses above all connections, and opens readers of them.

A response that is started here runs in this service's nursery until it ends, is cancelled, or has
lost its readers; what a connection holds is a reader.
"""

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import attrs
import msgspec
import trio

from ...engine.errors import EngineError
from ...nurseries.tasks.background import start_background_task, waiting_for
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import Generator
from ...runtime.messages import ForeignCall, ForeignVerb
from ...runtime.text.answer_format import TEXT_ALONE, AnswerFormat
from ...runtime.text.prompts import ChatPrompt, Prompt
from ..errors import ApiError, response_not_found, to_api_error
from ..openai.logprobs import make_formatter
from ..openai.response_events import Event, ResponseEvents
from ..openai.response_id import IdSource
from ..openai.responses_request import AUTO, ResponseRequest, ResumeRequest, read_response_request
from ..openai.tool_use import IgnoredTools
from ..schema.fields import JsonObject, out_of_range
from ..settings import ServeSettings
from ..streams.adoption import rebuilding
from ..streams.claims import ClaimCall
from ..streams.executions import ExecutionCall
from ..streams.foreign import ForeignReader, ForeignStreams, StreamBatch
from .adoption import kept_ending, rebuild
from .history import Conversation, continued, prompt_of
from .inputs import fitting, with_items
from .record import ResponseRecord
from .response import Response, ResponseReader, Wake
from .store import ResponseStore

Reader = ResponseReader | ForeignReader[list[Event]]
Answer = TypeVar("Answer")


@attrs.define(eq=False)
class ResponseService:
    """Service of a frontend. `run` is its background task; without it nothing can be started."""

    generator: Generator
    settings: ServeSettings
    store: ResponseStore
    foreign: ForeignStreams
    ids: IdSource
    # Raises `ApiError` when no new work is taken.
    check_accepting: Callable[[], None]
    # In which the model answers.
    answer_format: AnswerFormat = TEXT_ALONE
    _ignored_tools: IgnoredTools = attrs.field(factory=IgnoredTools, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `responses`; never returns. Cancellation: aborts all responses."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    @asynccontextmanager
    async def open(
        self,
        request: ResponseRequest,
        principal: str,
        *,
        response_id: str = "",
        session: str = "",
        streaming: bool = True,
        is_keyed: bool = False,
        must_be_begun: bool = False,
    ) -> AsyncIterator[Response]:
        """Start a response and hold it for the block; it is admitted when the block begins.

        One that a life of this frontend before has begun under its id goes on. What becomes of it
        after the block, its readers and its request decide. `session` is the socket that asks; with
        `streaming` off all output comes at once; the id of one that `is_keyed` holds the claim of
        its idempotency key. Raises `ApiError` when it is refused. Cancelled meanwhile: it is
        aborted.
        """
        known = self.store.begun(response_id)
        if known is not None:  # its client is there, as it was
            known.keep_s = self._keep_s(known.request, is_keyed=known.is_keyed)
            with known.held():
                yield known
            return
        if must_be_begun:  # a client has seen its beginning
            raise response_not_found(response_id)
        self.check_accepting()
        response = await self._prepare(
            request, principal, session, response_id, streaming=streaming, is_keyed=is_keyed
        )
        with response.held():
            await self._start(response)
            yield response

    async def _start(self, response: Response) -> None:
        """Returns when it was admitted; raises `ApiError` if it was not."""
        run = partial(response.run, self.generator, self.store)
        await self.start(run, f"response {response.response_id}")

    async def start(self, run: Callable[..., Awaitable[None]], name: str) -> None:
        """Start a task above all connections, of a response or a completion, that waits for tokens.

        Returns when it says that it has started; raises what it raises before that.
        """
        assert self._nursery is not None
        await start_background_task(self._nursery, run, name=name, waits_for="tokens")

    @asynccontextmanager
    async def run_whole(
        self, request: ResponseRequest, principal: str, response_id: str = ""
    ) -> AsyncIterator[Response]:
        """Run a response to its end in the caller's task: one that does not outlive its caller.

        All its output comes at once, and was sent when the block is left. Raises `ApiError` when it
        is refused. Cancelled meanwhile: it is aborted.
        """
        self.check_accepting()
        response = await self._prepare(request, principal, "", response_id, streaming=False)
        with response.held():
            with waiting_for("tokens"):
                await response.run(self.generator, self.store)
            yield response

    async def adopt(self, streams: Iterable[AdoptedStream]) -> None:
        """Go on with responses of a life of this frontend before; they run when this returns.

        What a server of other settings has begun, and this one would refuse, ends. Cancelled
        meanwhile: all are aborted.
        """
        for adopted in streams:
            if adopted.said is not None:
                self._keep_unread(adopted, adopted.said)
            elif (response := self._read_again(adopted)) is None:
                continue
            elif response.has_ended:  # two lives have died of it
                self.store.add(response)
                self.store.end(response)
            else:
                if not response.request.background:
                    keep_s = self._keep_s(response.request, is_keyed=response.is_keyed)
                    response.keep_s = max(keep_s, self.store.adopted_keep_s)
                    response.await_readers()
                await self._start(response)

    def _keep_unread(self, adopted: AdoptedStream, said: bytes) -> None:
        """Keep a response without reading it, until it is asked for: there may be thousands."""
        with rebuilding(adopted.name, [adopted], self.store):
            kept, read = kept_ending(said), partial(self._read_again, adopted)
            self.store.keep_unread(adopted.name, kept, adopted.size_bytes, read)

    def _read_again(self, adopted: AdoptedStream) -> Response | None:
        """The response, with its output if it has ended; None if it cannot be read again."""
        with rebuilding(adopted.name, [adopted], self.store):  # given up, the block ends with None
            return rebuild(adopted, self.generator, answer_format=self.answer_format)

    def _keep_s(self, request: ResponseRequest, *, is_keyed: bool) -> float:
        """How long it goes on without readers.

        The client of one with a key is expected to send it again: a whole answer is made for that,
        as its client cannot say where it stopped reading.
        """
        if not is_keyed:
            return request.keep_s
        if not request.stream:
            return math.inf
        return max(request.keep_s, self.settings.resume_keep_s)

    async def _prepare(
        self,
        request: ResponseRequest,
        principal: str,
        session: str,
        response_id: str,
        *,
        streaming: bool,
        is_keyed: bool = False,
    ) -> Response:
        keep_s = self.settings.resume_keep_s
        if request.keep_s > keep_s:
            raise out_of_range("runtime.keep_s", f"at most {keep_s:g} on this server")
        if request.refers:
            request = await self._with_items(request, principal)
        before = await self._conversation_before(request, principal, session)
        conversation = continued(before, request)
        self._ignored_tools.note(request.tools.given.ignored)
        events = ResponseEvents(
            response_id=response_id or self.ids.draw_response_id(),
            created_at=int(time.time()),
            model=self.generator.model_name,
            request=request,
            defaults=self.generator.sampling_defaults,
            formatter=make_formatter(self.generator.token_bytes, request.sampling.logprobs),
        )
        response = Response(
            ResponseRecord(events),
            principal,
            conversation,
            session="" if request.store else session,
            streaming=streaming,
            options=self.settings.with_merging(request.options, streaming=streaming),
            is_keyed=is_keyed,
            before=before,
            prompt=await self._truncated(conversation, request, principal),
        )
        response.keep_s = self._keep_s(request, is_keyed=response.is_keyed)
        return response

    async def _with_items(self, request: ResponseRequest, principal: str) -> ResponseRequest:
        """The same with items in the place of references to them. Raises `ApiError`."""
        values = await with_items(request.values, principal, partial(self.ask, kind=JsonObject))
        model, now = self.generator.model_name, trio.current_time()
        read = read_response_request(values, model=model, now=now, answer_format=self.answer_format)
        return attrs.evolve(read, came_at=request.came_at, stream_id=request.stream_id)

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
                prompt, self.generator, request.sampling.max_tokens, principal=principal
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
            tokens = await self.generator.tokenize(
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
            if self.foreign.is_foreign(previous_id):
                return await self.ask(
                    ForeignVerb.CONVERSATION, previous_id, principal, kind=Conversation
                )
            return self.store.conversation_of(previous_id, principal, session)
        except ApiError as error:
            raise _of_previous(error, previous_id) from error

    async def ask(
        self, verb: ForeignVerb, response_id: str, principal: str, *, kind: type[Answer]
    ) -> Answer:
        """Ask for a response, here or in another frontend. Raises `ApiError`."""
        return await self.foreign.call(verb, response_id, principal, kind=kind)

    async def carry_out(self, call: ForeignCall) -> Any:
        """Do this with a response, or a key, of this frontend. Raises `ApiError`."""
        store, response_id, principal = self.store, call.response_id, call.principal
        match call.verb:
            case ForeignVerb.GET:
                return store.get(response_id, principal)
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
                return store.conversation_of(response_id, principal)
            case ForeignVerb.EVENTS:
                return await self._read_batch(response_id, principal, call.starting_after)
            case ForeignVerb.CLAIM:
                claim = msgspec.json.decode(call.text, type=ClaimCall)
                return store.claims.handle_claim(claim, time.monotonic_ns())
            case _:
                assert call.verb is ForeignVerb.EXECUTION
                asked = msgspec.json.decode(call.text, type=ExecutionCall)
                find = partial(self._find, response_id, principal)
                return await store.executions.look_up(response_id, asked, find)

    async def _read_batch(self, response_id: str, principal: str, number: object) -> StreamBatch:
        response = self.store.find(response_id, principal)
        is_lost = number is not None and self.store.may_lack_events(response_id)
        return await response.next_batch(number, is_lost=is_lost)

    def _find(self, response_id: str, principal: str) -> Response | None:
        try:
            return self.store.find(response_id, principal)
        except ApiError:
            return None

    @asynccontextmanager
    async def read(
        self,
        resume: ResumeRequest,
        principal: str,
        *,
        session: str = "",
        wake: Wake | None = None,
    ) -> AsyncIterator[Reader]:
        """Read a response that runs or is kept, here or in another frontend, in this block.

        Raises `ApiError`: there is none (for this principal), or no such number yet.
        """
        await trio.lowlevel.checkpoint()
        if self.foreign.is_foreign(resume.response_id):
            named = (resume.response_id, principal, resume.starting_after)
            reader = ForeignReader(self.foreign, ForeignVerb.EVENTS, list[Event], *named)
            await reader.wait_ready()
            yield reader
            return
        response = self.store.find(resume.response_id, principal, session)
        if resume.starting_after is not None and self.store.may_lack_events(resume.response_id):
            await response.catch_up(resume.starting_after)
        with response.reading(resume.starting_after, wake) as attached:
            yield attached


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
