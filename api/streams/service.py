"""Service of one surface: starts its streams above all connections, and opens readers of them.

A stream that is started here runs in the nursery that all services share until it ends, is
cancelled, or has lost its readers; what a connection holds is a reader. A *surface* (`responses`,
`completions`) says how an order becomes a stream, and how one is built again from the journal.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import attrs
import msgspec
import trio

from ...nurseries.tasks.background import start_background_task, waiting_for
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import Generator
from ...runtime.messages import ForeignCall, ForeignVerb
from ...runtime.text.answer_format import TEXT_ALONE, AnswerFormat
from ..access_log import AccessEntry
from ..errors import ApiError
from ..openai.response_id import IdSource
from ..openai.tool_use import IgnoredTools
from ..schema.fields import out_of_range
from ..settings import ServeSettings
from .adoption import rebuilding
from .books import StreamBooks
from .executions import Execution, ExecutionCall
from .foreign import ForeignReader, ForeignStreams, StreamBatch
from .served_stream import Order, ServedStream, Wake
from .store import StreamStore
from .stream_reader import StreamReader

Ordered = TypeVar("Ordered", bound=Order)
Stream = TypeVar("Stream", bound=ServedStream[Any])
Piece = TypeVar("Piece")
# Writes down the id under which something is executed: a drawn one, or that of a life before.
Claim = Callable[[Callable[[], str]], str]


def unclaimed(draw: Callable[[], str]) -> str:
    """Claim an id where no one else may go on with it."""
    return draw()


@attrs.define(eq=False)
class Streams:
    """Streams of a frontend: what all services share. `run` is the background task of all."""

    generator: Generator
    settings: ServeSettings
    books: StreamBooks
    foreign: ForeignStreams
    ids: IdSource
    # Raises `ApiError` when no new work is taken.
    check_accepting: Callable[[], None]
    # In which the model answers.
    answer_format: AnswerFormat = TEXT_ALONE
    ignored_tools: IgnoredTools = attrs.field(factory=IgnoredTools, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `responses`; never returns. Cancellation: aborts all streams."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    @property
    def is_open(self) -> bool:
        """Whether streams can be started."""
        return self._nursery is not None

    async def start(self, stream: ServedStream[Any], store: StreamStore[Any]) -> None:
        """Returns when it was admitted; raises `ApiError` if it was not."""
        assert self._nursery is not None
        name = f"{stream.noun} {stream.order.stream_id}"
        run = partial(stream.run, store)
        await start_background_task(self._nursery, run, name=name, waits_for="tokens")


@attrs.define(eq=False)
class StreamService(Generic[Ordered, Stream, Piece]):
    """Service of one surface in a frontend."""

    # How a batch of events is asked for in another frontend.
    verb: ClassVar[ForeignVerb]

    streams: Streams
    store: StreamStore[Stream] = attrs.field(init=False)

    # ---- what a surface says

    async def make(self, order: Ordered) -> Stream:
        """A stream that was not admitted yet. Raises `ApiError`."""
        raise NotImplementedError

    def rebuild(self, stream_id: str, parts: list[AdoptedStream]) -> Stream:
        """The stream of a life before; with its output, if it has ended.

        Raises `JournalUnreadable`, and what reading its request does, as `ApiError` or
        `msgspec.DecodeError`.
        """
        raise NotImplementedError

    def keep_unread(self, adopted: AdoptedStream, said: bytes) -> None:
        """Keep a stream that ended so without reading it, until it is asked for."""
        raise NotImplementedError

    def join(self, parts: list[Any], /) -> Piece:
        """Parts that another frontend has sent, as a reader gives them."""
        raise NotImplementedError

    # ---- starting

    @asynccontextmanager
    async def open(self, order: Ordered, *, must_be_begun: bool = False) -> AsyncIterator[Stream]:
        """Start a stream and hold it for the block; it is admitted when the block begins.

        One that a life of this frontend before has begun under its id goes on. What becomes of it
        after the block, its readers and its request decide. Raises `ApiError` when it is refused.
        Cancelled meanwhile: it is aborted.
        """
        known, resume_keep_s = self.store.begun(order.stream_id), self.resume_keep_s
        if known is not None:  # its client is there, as it was
            known.keep_s = known.order.goes_on_s(resume_keep_s)
            with known.held():
                yield known
            return
        if must_be_begun:  # a client has seen its beginning
            raise self.store.missing(order.stream_id)
        stream = await self._make(order)
        with stream.held():
            await self.streams.start(stream, self.store)
            yield stream

    @asynccontextmanager
    async def answer(
        self, order: Ordered, access: AccessEntry, *, must_be_begun: bool = False
    ) -> AsyncIterator[Stream]:
        """Yields a stream that has ended; its answer was sent when the block is left.

        One that does not outlive its caller runs in the caller's task. Raises `ApiError` when it is
        refused. Cancelled meanwhile: it is aborted, unless it goes on without readers.
        """
        outlives = order.goes_on_s(self.resume_keep_s) > 0
        if outlives or self.store.begun(order.stream_id) is not None:
            async with self.open(order, must_be_begun=must_be_begun) as stream:
                access.generation = stream.generated
                await stream.wait_ended()
                yield stream
                stream.is_over = True
            return
        stream = await self._make(order)
        with stream.held():
            with waiting_for("tokens"):
                await stream.run(self.store)
            access.generation = stream.generated
            yield stream

    async def _make(self, order: Ordered) -> Stream:
        self.streams.check_accepting()
        if order.keep_s > self.resume_keep_s:
            reason = f"at most {self.resume_keep_s:g} on this server"
            raise out_of_range("runtime.keep_s", reason)
        stream = await self.make(order)
        stream.keep_s = order.goes_on_s(self.resume_keep_s)
        return stream

    @property
    def resume_keep_s(self) -> float:
        """How long a stream may go on without readers."""
        return self.streams.settings.resume_keep_s

    # ---- reading

    @asynccontextmanager
    async def read(
        self,
        stream_id: str,
        principal: str,
        position: Any,
        *,
        session: str = "",
        wake: Wake | None = None,
        is_client: bool = True,
    ) -> AsyncIterator[StreamReader[Any, Piece] | ForeignReader[Piece]]:
        """Read a stream that runs or is kept, here or in another frontend, in this block.

        Raises `ApiError`: there is none (for this principal), or no such position yet.
        """
        await trio.lowlevel.checkpoint()
        foreign = self.streams.foreign
        if foreign.is_foreign(stream_id):
            reader = ForeignReader(foreign, self.verb, self.join, stream_id, principal, position)
            await reader.wait_ready()
            yield reader
            return
        stream = self._find_readable(stream_id, principal, session)
        if self._is_lost(stream, position):
            await stream.catch_up(position)
        with stream.reading(position, wake, is_client=is_client) as attached:
            yield attached

    async def _read_batch(self, stream_id: str, principal: str, position: Any) -> StreamBatch:
        """Read for another frontend what comes behind this position, or comes in a moment."""
        stream = self._find_readable(stream_id, principal)
        return await stream.next_batch(position, is_lost=self._is_lost(stream, position))

    def _find_readable(self, stream_id: str, principal: str, session: str = "") -> Stream:
        stream = self.store.find(stream_id, principal, session)
        if not stream.order.is_read_again:
            raise self.store.missing(stream_id)
        return stream

    def _is_lost(self, stream: Stream, position: object) -> bool:
        """Whether what was seen up to here may have to be computed again."""
        return position is not None and self.streams.books.may_lack_events(*stream.order.names)

    async def carry_out(self, call: ForeignCall) -> Any:
        """Do this with a stream, or a key, of this frontend. Raises `ApiError`."""
        stream_id, principal, books = call.response_id, call.principal, self.streams.books
        if call.verb is self.verb:
            return await self._read_batch(stream_id, principal, call.starting_after)
        assert call.verb is ForeignVerb.EXECUTION
        asked = msgspec.json.decode(call.text, type=ExecutionCall)
        find = partial(self._find, stream_id, principal)
        found: Execution = await books.executions.look_up(stream_id, asked, find)
        return found

    def _find(self, stream_id: str, principal: str) -> Stream | None:
        try:
            return self.store.find(stream_id, principal)
        except ApiError:
            return None

    # ---- adoption

    async def adopt(self, streams: Iterable[AdoptedStream]) -> None:
        """Go on with streams of a life of this frontend before; they run when this returns.

        What a server of other settings has begun, and this one would refuse, ends. Cancelled
        meanwhile: all are aborted.
        """
        parts: dict[str, list[AdoptedStream]] = {}
        for adopted in streams:
            parts.setdefault(adopted.name.partition("-")[0], []).append(adopted)
        books = self.streams.books
        for stream_id, found in parts.items():
            with rebuilding(stream_id, found, books):
                if found[0].said is not None:
                    self.keep_unread(found[0], found[0].said)
                    continue
                stream = self.rebuild(stream_id, found)
                if not stream.order.is_background:
                    keep_s = stream.order.goes_on_s(self.resume_keep_s)
                    stream.keep_s = max(keep_s, books.adopted_keep_s)
                    stream.await_readers()
                await self.streams.start(stream, self.store)
