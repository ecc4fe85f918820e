"""Completions service: chat completions and completions by id, here and in other frontends.

They run above all connections; a connection holds a reader, or waits for the whole answer. Each is
known until its client has had all of it or stayed away too long; with a key as ended responses are.
"""

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from ...nurseries.tasks.background import waiting_for
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import Generator
from ...runtime.messages import ForeignVerb
from ...runtime.text.answer_format import TEXT_ALONE, AnswerFormat
from ..errors import completion_not_found, frontends_died
from ..openai.completion_requests import ChatRequest, CompletionsRequest
from ..openai.response_id import IdSource
from ..openai.responses_request import json_bytes
from ..openai.tool_use import IgnoredTools
from ..schema.fields import JsonObject, out_of_range
from ..settings import ServeSettings
from ..streams.adoption import Adoption, is_long, kept_request, rebuilding
from ..streams.books import StreamBooks
from ..streams.claims import Standing
from ..streams.executions import (
    COME_AGAIN,
    FORGOTTEN,
    INTERRUPTED,
    Execution,
    ExecutionCall,
)
from ..streams.foreign import ForeignReader, ForeignStreams, StreamBatch
from ..streams.retention import Retention
from .completion import CompletionReader, ServedCompletion
from .order import CompletionOrder, request_again

Reader = CompletionReader | ForeignReader[bytes]
# Writes down the id under which something is executed: a drawn one, or that of a life before.
Claim = Callable[[Callable[[], str]], str]


def unclaimed(draw: Callable[[], str]) -> str:
    """Claim an id where no one else may go on with it."""
    return draw()


# Size of a kept completion beside its request and its output; an estimate.
COMPLETION_BYTES = 4096


@attrs.define(eq=False)
class CompletionService:
    """Service of a frontend; `start` runs a named task above all connections until it ends."""

    generator: Generator
    settings: ServeSettings
    foreign: ForeignStreams
    ids: IdSource
    # Raises `ApiError` when no new work is taken.
    check_accepting: Callable[[], None]
    start: Callable[[Callable[..., Awaitable[None]], str], Awaitable[None]]
    # The books of requests with keys, and the journal that a successor finds.
    books: StreamBooks
    answer_format: AnswerFormat = TEXT_ALONE
    _ignored_tools: IgnoredTools = attrs.field(factory=IgnoredTools, init=False)
    # Completions that run, or are held; and those that may be asked for again.
    _live: dict[str, ServedCompletion] = attrs.field(factory=dict, init=False)
    _kept: Retention[ServedCompletion] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limits = self.settings.limits
        bounds = (limits.ended_responses_max, limits.ended_bytes_max)
        self._kept = Retention(*bounds, self._handle_forgotten)

    @property
    def active(self) -> int:
        """How many have not ended."""
        return sum(not each.has_ended for each in self._live.values())

    def cancel_all(self, reason: str) -> None:
        """End those that run."""
        for completion in self._live.values():
            completion.cancel(reason)

    def order(
        self,
        request: ChatRequest | CompletionsRequest,
        principal: str,
        values: JsonObject,
        claim: Claim = unclaimed,
        *,
        is_keyed: bool = False,
    ) -> CompletionOrder:
        """Order a request, whose body this is; its id is what `claim` makes of a new one."""
        is_streamed = request.options.stream
        if isinstance(request, ChatRequest):
            self._ignored_tools.note(request.tools.given.ignored)
        order = CompletionOrder(
            completion_id=claim(partial(self.ids.draw, request.kind)),
            created=int(time.time()),
            principal=principal,
            request=request,
            generator=self.generator,
            values=values,
            options=self.settings.with_merging(request.options.runtime, streaming=is_streamed),
            is_keyed=is_keyed,
        )
        is_wanted = is_streamed or is_keyed or is_long(request.sampling, order.choice_count)
        order.is_noted = is_wanted and self.books.journal is not None
        return order

    @asynccontextmanager
    async def open(
        self,
        order: CompletionOrder,
        position: str | None = None,
        *,
        must_be_begun: bool = False,
    ) -> AsyncIterator[CompletionReader]:
        """Start a streamed completion and read it in this block; it was admitted when that begins.

        One that a life of this frontend before has begun goes on, from behind this position.
        Raises `ApiError` when it is refused. Cancelled meanwhile: it is aborted.
        """
        known = self._get(order.completion_id, order.principal)
        if known is not None:
            known.keep_s = math.inf if order.is_keyed else order.request.options.keep_s
            with known.held(), known.reading(position, has_ids=order.is_kept) as reader:
                yield reader
            return
        if must_be_begun:  # a client has seen its beginning
            raise completion_not_found(order.completion_id)
        keep_s, keep_max_s = order.request.options.keep_s, self.settings.resume_keep_s
        if keep_s > keep_max_s:
            raise out_of_range("runtime.keep_s", f"at most {keep_max_s:g} on this server")
        completion = self._make(order, keep_s)
        with completion.held():
            await self._start(completion)
            with completion.reading(has_ids=order.is_kept) as reader:
                yield reader

    @asynccontextmanager
    async def answer(self, order: CompletionOrder) -> AsyncIterator[ServedCompletion]:
        """Answer an order: yields a completion that has ended, maybe begun by a life before.

        Raises `ApiError`: it is refused, or fails. Cancelled meanwhile: it is aborted; with a key
        it goes on once it was admitted.
        """
        if self._get(order.completion_id, order.principal) is not None:
            async with self.whole(order.completion_id, order.principal) as completion:
                yield completion
            return
        completion = self._make(order)
        with completion.held():
            if order.is_keyed:
                await self._start(completion)
                await completion.wait_ended()
            else:  # in this task: it does not outlive its caller
                with waiting_for("tokens"):
                    await completion.run(self)
            yield completion

    def _make(self, order: CompletionOrder, keep_s: float = 0.0) -> ServedCompletion:
        self.check_accepting()
        return _kept_for(keep_s, ServedCompletion(order))

    async def _start(self, completion: ServedCompletion) -> None:
        """Returns when it was admitted; raises `ApiError` if it was not."""
        run = partial(completion.run, self)
        await self.start(run, f"completion {completion.order.completion_id}")

    # ---- what is known

    def add(self, completion: ServedCompletion) -> None:
        """Add a completion that was admitted."""
        self._live[completion.order.completion_id] = completion
        if completion.order.is_keyed:
            self.books.executions.handle_admitted(completion.order.completion_id)

    def end(self, completion: ServedCompletion) -> None:
        """A completion has ended: it stays where it is until its readers have left."""

    def handle_refused(self, completion: ServedCompletion) -> None:
        """A completion was not admitted: no successor is to find it."""
        self._forget(completion)

    def handle_left(self, completion: ServedCompletion) -> None:
        """An ended completion is not held: it is kept as long as it may be asked for."""
        order, is_cut = completion.order, completion.is_cut
        completion_id, is_keyed = order.completion_id, order.is_keyed
        self._live.pop(completion_id, None)
        if is_cut or not (is_keyed or (completion.keep_s and not completion.is_over)):
            self._kept.drop(completion_id)
            self._forget(completion)
            if is_keyed:
                self.books.bury(completion_id, Standing.LOST, INTERRUPTED)
        elif not (is_keyed and completion_id in self._kept):
            now, until_s = trio.current_time(), completion.scope.deadline
            if is_keyed:
                until_s = now + self.settings.limits.ended_s
            size_bytes = COMPLETION_BYTES + json_bytes(order.values) + completion.record.size_bytes
            self._kept.keep(completion_id, completion, size_bytes, until_s)
            self._kept.forget_old(now)
            error = completion.record.error
            if error is not None and error.status == COME_AGAIN:
                self._forget(completion)  # no answer: the next life is not to look for one
        self.books.on_ended()

    def _handle_forgotten(
        self, completion_id: str, completion: ServedCompletion, is_over: bool
    ) -> None:
        if completion.order.is_keyed and not is_over:
            self.books.bury(completion_id, Standing.GONE, FORGOTTEN)
        self._forget(completion)

    def _forget(self, completion: ServedCompletion) -> None:
        journal = self.books.journal
        if journal is not None and completion.order.is_noted:
            journal.forget(*completion.order.names)

    def _find(self, completion_id: str, principal: str) -> ServedCompletion:
        completion = self._get(completion_id, principal)
        if completion is None:
            raise completion_not_found(completion_id)
        return completion

    def _get(self, completion_id: str, principal: str) -> ServedCompletion | None:
        found = self._live.get(completion_id)
        if found is None:
            found = self._kept.find(completion_id, trio.current_time())
        return None if found is None or found.order.principal != principal else found

    def has(self, completion_id: str, principal: str) -> bool:
        """Whether it was admitted here, and runs or is kept."""
        return self._get(completion_id, principal) is not None

    async def look_up(self, completion_id: str, principal: str, asked: ExecutionCall) -> Execution:
        """How one with a key stands; see `Executions.look_up`."""
        find = partial(self._get, completion_id, principal)
        return await self.books.executions.look_up(completion_id, asked, find)

    # ---- reading again

    @asynccontextmanager
    async def whole(self, completion_id: str, principal: str) -> AsyncIterator[ServedCompletion]:
        """Wait for the end of a completion that an earlier frontend has admitted; it was sent when
        this block is left. Raises `ApiError`: there is none (for this principal)."""
        completion = self._find(completion_id, principal)
        with completion.held():
            await completion.wait_ended()
            yield completion
            completion.is_over = True

    @asynccontextmanager
    async def read(
        self, completion_id: str, principal: str, position: str | None, *, is_last: bool = True
    ) -> AsyncIterator[Reader]:
        """Read a streamed completion, here or in another frontend, in this block.

        With `is_last` it is forgotten when all was read. Raises `ApiError`: there is none (for this
        principal), or no frame of this id yet.
        """
        await trio.lowlevel.checkpoint()
        if self.foreign.is_foreign(completion_id):
            named = (completion_id, principal, position)
            reader = ForeignReader(self.foreign, ForeignVerb.CHUNKS, _frames_of, *named)
            await reader.wait_ready()
            yield reader
            return
        completion = self._find_stream(completion_id, principal)
        if self._is_lost(completion, position):
            await completion.catch_up(position)
        with completion.reading(position, is_last=is_last) as attached:
            yield attached

    def _find_stream(self, completion_id: str, principal: str) -> ServedCompletion:
        completion = self._find(completion_id, principal)
        if not completion.order.request.options.stream:
            raise completion_not_found(completion_id)
        return completion

    def _is_lost(self, completion: ServedCompletion, position: str | None) -> bool:
        """Whether what was seen up to here may have to be computed again."""
        return position is not None and self.books.may_lack_events(*completion.order.names)

    async def read_batch(
        self, completion_id: str, principal: str, position: str | None
    ) -> StreamBatch:
        """Read a batch for another frontend: what comes behind this id, or comes in a moment."""
        completion = self._find_stream(completion_id, principal)
        return await completion.next_batch(position, is_lost=self._is_lost(completion, position))

    # ---- adoption

    async def adopt(self, streams: Iterable[AdoptedStream]) -> None:
        """Go on with completions of a life of this frontend before; they run when this returns.

        What a server of other settings has begun, and this one would refuse, ends. Cancelled
        meanwhile: all are aborted.
        """
        parts: dict[str, list[AdoptedStream]] = {}
        for adopted in streams:
            parts.setdefault(adopted.name.partition("-")[0], []).append(adopted)
        for completion_id, found in parts.items():
            with rebuilding(completion_id, found, self.books):
                completion = self._rebuild(completion_id, found)
                completion.await_readers()
                await self._start(completion)

    def _rebuild(self, completion_id: str, parts: list[AdoptedStream]) -> ServedCompletion:
        """Raises `JournalUnreadable`, and what reading its request does, as `ApiError` or
        `msgspec.DecodeError`.
        """
        parts.sort(key=lambda part: int(part.name.partition("-")[2] or 0))
        admission, *_ = [part.admission for part in parts]  # all are loaded here, or it fails here
        model = self.generator.model_name
        kept = kept_request(admission)
        asked = (completion_id, kept.values)
        request = request_again(*asked, model=model, answer_format=self.answer_format)
        order = CompletionOrder(
            completion_id=completion_id,
            created=admission.created_at,
            principal=admission.requests[0].principal,
            request=request,
            generator=self.generator,
            values=kept.values,
            is_keyed=kept.is_keyed,
            is_noted=True,
        )
        if [part.name for part in parts] != order.names:
            # The completion was cut within its admission, of which its client does not know.
            raise frontends_died("completion", "completion_lost")
        keep_s = max(request.options.keep_s, self.books.adopted_keep_s)
        completion = _kept_for(keep_s, ServedCompletion(order))
        completion.adoption = Adoption.of(*parts)
        return completion


def _kept_for(keep_s: float, completion: ServedCompletion) -> ServedCompletion:
    """The completion, which may be left alone for so long; with a key, for as long as it takes."""
    completion.keep_s = math.inf if completion.order.is_keyed else keep_s
    return completion


def _frames_of(parts: list[str]) -> bytes:
    """The frames of a batch."""
    return "".join(parts).encode()
