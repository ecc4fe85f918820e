"""Completions service: streamed completions by id, here and in other frontends.

They run above all connections; what a connection holds is a reader. Each is known until its client
has had all of it, or has stayed away for too long.
"""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import msgspec
import trio

from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import Generator
from ...runtime.journal.journal import Journal
from ...runtime.messages import ForeignVerb
from ..errors import ApiError, frontends_died
from ..openai.completion_requests import (
    ChatRequest,
    CompletionsRequest,
    read_chat_request,
    read_completions_request,
)
from ..openai.response_id import IdSource
from ..responses.foreign import ForeignResponses
from ..responses.verbs import ChunkBatch
from ..schema.fields import JsonObject, out_of_range
from ..settings import ServeSettings
from .completion import CompletionReader, StreamedCompletion
from .cursor import RESUMABLE_CHOICES_MAX
from .order import CHAT_KIND, COMPLETIONS_KIND, AdoptedOrder, CompletionOrder

logger = logging.getLogger(__name__)
# How long another frontend waits for further chunks, and how many tokens it gets at once.
CHUNKS_WAIT_S = 1.0
CHUNK_TOKENS_MAX = 256


@attrs.define(eq=False)
class CompletionService:
    """One per frontend; `start` runs a named task above all connections until it ends."""

    generator: Generator
    settings: ServeSettings
    foreign: ForeignResponses
    ids: IdSource
    # Raises `ApiError` when no new work is taken.
    check_accepting: Callable[[], None]
    start: Callable[[Callable[..., Awaitable[None]], str], Awaitable[None]]
    # Called when one has ended.
    on_ended: Callable[[], None]
    # Whether the model's template shows tools.
    has_tools: bool = False
    # Where a successor of this frontend finds them, if there is one.
    journal: Journal | None = None
    # How long one whose reader was cut off, with a frontend before this one, waits for it.
    adopted_keep_s: float = 0.0
    # All that may be read.
    _completions: dict[str, StreamedCompletion] = attrs.field(factory=dict, init=False)

    @property
    def active(self) -> int:
        """How many have not ended."""
        return sum(not each.record.has_ended for each in self._completions.values())

    def cancel_all(self, reason: str) -> None:
        """End those that run."""
        for completion in self._completions.values():
            completion.cancel(reason)

    def order(
        self, request: ChatRequest | CompletionsRequest, principal: str, values: JsonObject
    ) -> CompletionOrder:
        """Of a client's request, whose body this is."""
        is_streamed = request.options.stream
        order = CompletionOrder(
            completion_id=self.ids.draw(_kind_of(request)),
            created=int(time.time()),
            principal=principal,
            request=request,
            generator=self.generator,
            merge_s=self.settings.merge_s(streaming=is_streamed),
        )
        is_resumable = is_streamed and order.choice_count <= RESUMABLE_CHOICES_MAX
        order.values = values if is_resumable else None
        return order

    @asynccontextmanager
    async def open(self, order: CompletionOrder) -> AsyncIterator[CompletionReader]:
        """Start a streamed completion and read it in this block; it was admitted when that begins.

        Raises `ApiError` when it is refused. Cancelled meanwhile: it is aborted.
        """
        self.check_accepting()
        keep_s, keep_max_s = order.request.options.keep_s, self.settings.resume_keep_s
        if keep_s > keep_max_s:
            raise out_of_range("runtime.keep_s", f"at most {keep_max_s:g} on this server")
        completion = StreamedCompletion(order, order, keep_s, self.on_ended)
        await self._start(completion)
        with completion.reading() as reader:
            yield reader

    async def _start(self, completion: StreamedCompletion) -> None:
        """Returns when it was admitted; raises `ApiError` if it was not."""
        name = f"completion {completion.order.completion_id}"
        await self.start(partial(self._run, completion), name)

    async def _run(
        self,
        completion: StreamedCompletion,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        order = completion.order
        self._completions[order.completion_id] = completion
        try:
            await completion.run(task_status=task_status)
        finally:
            del self._completions[order.completion_id]
            if self.journal is not None and order.values is not None:
                for name in order.names:
                    self.journal.forget(name)

    # ---- reading again

    @asynccontextmanager
    async def read(
        self, completion_id: str, principal: str, position: str | None, *, is_last: bool = True
    ) -> AsyncIterator["CompletionReader | ForeignCompletionReader"]:
        """Read a completion, here or in another frontend, in this block.

        With `is_last` it is forgotten when all was read. Raises `ApiError`: there is none (for this
        principal), or no frame of this id yet.
        """
        await trio.lowlevel.checkpoint()
        if self.foreign.is_foreign(completion_id):
            reader = ForeignCompletionReader(self.foreign, completion_id, principal, position)
            await reader.wait_ready()
            yield reader
            return
        completion = self._find(completion_id, principal)
        with completion.reading(position, is_last=is_last) as attached:
            yield attached

    def _find(self, completion_id: str, principal: str) -> StreamedCompletion:
        completion = self._completions.get(completion_id)
        if completion is None or completion.order.principal != principal:
            raise completion_not_found(completion_id)
        return completion

    async def read_batch(
        self, completion_id: str, principal: str, position: str | None
    ) -> ChunkBatch:
        """For another frontend: what comes behind this id, or comes in a moment."""
        completion = self._find(completion_id, principal)
        with completion.reading(position, is_last=False) as reader:
            reader.cursor.check_resumable()
            with trio.move_on_after(CHUNKS_WAIT_S):
                await reader.wait_ready()
            frames = reader.take(CHUNK_TOKENS_MAX).decode()
            return ChunkBatch(frames, reader.cursor.position, reader.is_done)

    # ---- adoption

    async def adopt(self, streams: Iterable[AdoptedStream]) -> None:
        """Go on with completions of a life of this frontend before; they run when this returns.

        What a server of other settings has begun, and this one would refuse, ends. Cancelled
        meanwhile: all are aborted.
        """
        parts: dict[str, list[AdoptedStream]] = {}
        for adopted in streams:
            parts.setdefault(adopted.admission.name.partition("-")[0], []).append(adopted)
        for completion_id, found in parts.items():
            found[0].note_rebuilding()
            try:
                completion = self._rebuild(completion_id, found)
                completion.await_readers()
                await self._start(completion)
            except (ApiError, msgspec.MsgspecError) as failure:
                logger.error("completion %s cannot be read again: %s", completion_id, failure)
                for adopted in found:
                    adopted.forget()
            else:
                found[0].note_rebuilt()

    def _rebuild(self, completion_id: str, parts: list[AdoptedStream]) -> StreamedCompletion:
        """Raises what reading its request does, as `ApiError` or `msgspec.DecodeError`."""
        parts.sort(key=lambda part: int(part.admission.name.partition("-")[2] or 0))
        admission, model = parts[0].admission, self.generator.model_name
        values = msgspec.json.decode(admission.body, type=JsonObject)
        request: ChatRequest | CompletionsRequest
        if completion_id.startswith(f"{CHAT_KIND}_"):
            request = read_chat_request(values, model=model, has_tools=self.has_tools)
        else:
            request = read_completions_request(values, model=model)
        first = admission.requests[0]
        order = CompletionOrder(
            completion_id=completion_id,
            created=admission.created_at,
            principal=first.principal,
            request=request,
            generator=self.generator,
            values=values,
        )
        if [part.admission.name for part in parts] != order.names:
            raise frontends_died(
                "completion", "completion_lost"
            )  # it was cut within its admission, of which its client does not know
        deadline = parts[0].admitted_at + request.options.runtime.deadline_s
        keep_s = max(request.options.keep_s, self.adopted_keep_s)
        streams = AdoptedOrder(order, parts, deadline)
        return StreamedCompletion(order, streams, keep_s, self.on_ended)


@attrs.define(eq=False)
class ForeignCompletionReader:
    """Reads a completion of another frontend, batch by batch; it does not keep it from ending."""

    foreign: ForeignResponses
    completion_id: str
    principal: str
    position: str | None
    # Everything was taken.
    is_done: bool = attrs.field(default=False, init=False)
    # The batch that was fetched and not taken.
    _frames: bytes = attrs.field(default=b"", init=False)
    _is_last: bool = attrs.field(default=False, init=False)

    async def wait_ready(self) -> None:
        """Return when there is something to take, or all was taken. Raises `ApiError`."""
        while not (self._frames or self._is_last):
            try:
                batch: ChunkBatch = await self.foreign.call(
                    ForeignVerb.CHUNKS, self.completion_id, self.principal, self.position
                )
            except ApiError as error:
                if error.status != 404:
                    raise
                raise completion_not_found(self.completion_id) from error
            self._frames, self._is_last = batch.frames.encode(), batch.is_last
            self.position = batch.position

    def take(self) -> bytes:
        """The batch that waits; the owner has bounded its size."""
        frames, self._frames = self._frames, b""
        self.is_done = self._is_last
        return frames


def _kind_of(request: ChatRequest | CompletionsRequest) -> str:
    return CHAT_KIND if isinstance(request, ChatRequest) else COMPLETIONS_KIND


def completion_not_found(completion_id: str) -> ApiError:
    """The 404 for an id that is unknown, or another principal's."""
    return ApiError(
        404,
        f"No streamed completion with the id {completion_id[:100]!r} runs or is kept",
        "completion_not_found",
        param="id",
    )
