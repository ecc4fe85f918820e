"""Life of one served answer, from its admission until its readers have left: task, scope, readers.

A stream is above every connection: readers come and go, each with a cursor of its own, and callers
hold it while they wait for the whole answer. When the last of them has left it goes on for the time
that its request asked for, and then it is aborted.

No task moves tokens. The collector of the request's outputs calls `on_output` once, readers are
woken, and the first that takes pulls everything into the record; so tokens that come meanwhile cost
nothing and are merged, and a request whose readers are all behind meets its credit and is paused.
Without readers, while a caller waits for the end, and with the end itself, outputs are pulled when
they come.

A *surface* derives from this class: its record, its positions and the form of its events. There are
two, `responses.response` (Responses) and `completions.completion` (chat, completions, Messages).
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import attrs
import trio

from ...engine.errors import EngineError
from ...runtime.frontend.generation import Generator
from ...runtime.journal.journal import Journal
from ..access_log import Generated
from ..errors import ApiError, frontends_died, to_api_error, too_many_readers
from ..schema.fields import JsonObject
from .adoption import Adoption
from .books import StreamBooks
from .foreign import StreamBatch
from .stream_reader import StreamReader

logger = logging.getLogger(__name__)
# Each reader costs a connection anyway.
READERS_MAX = 8
# How long another frontend waits for further parts before it hears that there are none yet.
BATCH_WAIT_S = 1.0
Known = TypeVar("Known", contravariant=True)
Reader = TypeVar("Reader", bound=StreamReader[Any, Any])
# Called when the request has reached its engine.
Admit = Callable[[], None]
# Called with a reader when there is more for it.
Wake = Callable[[Any], None]


@attrs.define(eq=False, kw_only=True)
class Order:
    """Request of a client, as it is put to the runtime; a surface adds what it asks for."""

    stream_id: str
    principal: str
    generator: Generator
    # The request has an idempotency key, whose claim it holds.
    is_keyed: bool = False
    # Streams of the request are written down for a successor of this frontend.
    is_noted: bool = False

    @property
    def names(self) -> list[str]:
        """Names of its requests to the runtime."""
        return [self.stream_id]

    @property
    def noted_names(self) -> list[str]:
        """Names under which a successor finds it."""
        return self.names if self.is_noted else []

    @property
    def session(self) -> str:
        """The one socket session that finds the stream when it has ended; "" for any."""
        return ""

    @property
    def keep_s(self) -> float:
        """How long it is to go on without readers, as its client asks."""
        raise NotImplementedError

    def goes_on_s(self, resume_keep_s: float) -> float:
        """How long it goes on without readers, on a server whose limit that is."""
        raise NotImplementedError

    @property
    def is_streamed(self) -> bool:
        """Whether its client reads events."""
        raise NotImplementedError

    @property
    def is_background(self) -> bool:
        """Whether its client waits for nothing, and the stream needs no reader."""
        return False

    @property
    def is_read_again(self) -> bool:
        """Whether others may read its events."""
        return True


class Owner(Protocol[Known]):
    """Owner that knows a stream from its admission on."""

    def add(self, stream: Known, /) -> None:
        """The stream was admitted."""

    def end(self, stream: Known, /) -> None:
        """The stream has ended, for whatever reason."""

    def handle_left(self, stream: Known, /) -> None:
        """An ended stream has no reader, and no caller is to answer with it; may be repeated."""

    def handle_refused(self, stream: Known, /) -> None:
        """The stream was not admitted: no successor is to find it."""


@attrs.define(eq=False)
class ServedStream(Generic[Reader]):
    """Answer, whole or as events, while it is served."""

    # In errors and logs.
    noun: ClassVar[str] = "stream"

    order: Order
    # How long the stream goes on without readers, in seconds; 0: not at all.
    keep_s: float = attrs.field(default=0.0, init=False)
    # When the request's time is over, by trio's clock.
    deadline_s: float = attrs.field(default=math.inf, init=False)
    # The rest, until its end, of a stream that an earlier life of this frontend has begun.
    adoption: Adoption | None = attrs.field(default=None, init=False)
    # Around the generation; its deadline is the request's, or the end of the time without readers.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # Readers know that there is more to pull.
    has_more: bool = attrs.field(default=False, init=False)
    # The client has had all of it.
    is_over: bool = attrs.field(default=False, init=False)
    # The end was asked for, and is no matter of time.
    is_cancelled: bool = attrs.field(default=False, init=False)
    # The owner, which knows the stream since its admission.
    _owner: Owner[Any] | None = attrs.field(default=None, init=False)
    # Readers of events; callers for whom it must go on; callers that wait for its end.
    _readers: list[Reader] = attrs.field(factory=list, init=False)
    _holders: int = attrs.field(default=0, init=False)
    _waiting: int = attrs.field(default=0, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    # ---- what a surface says

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is added."""
        raise NotImplementedError

    @property
    def names(self) -> dict[str, str]:
        """Clients' words for the parameters that an error names."""
        raise NotImplementedError

    def generated(self) -> Generated:
        """The result so far, for the access log."""
        raise NotImplementedError

    def reading(
        self, position: Any = None, wake: Wake | None = None, *, is_client: bool = True
    ) -> AbstractContextManager[Reader]:
        """Read in this block, from behind this position. `wake` is called when there is more.

        Unless `is_client`, it is for another frontend, or until a position is there again. Raises
        `ApiError` for a position that is not there yet, or when too many read already.
        """
        raise NotImplementedError

    def reading_first(self, position: Any) -> AbstractContextManager[Reader]:
        """Read in this block, for the client whose order it is."""
        return self.reading(position)

    def whole(self) -> JsonObject:
        """The whole answer. Raises the failure that it ended with."""
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        """An estimate of what it takes to keep the stream, when it has ended."""
        raise NotImplementedError

    def kept_s(self, books: StreamBooks, /) -> float:
        """How long it is kept after its end; infinite while its reader may come back."""
        raise NotImplementedError

    @property
    def is_resumable(self) -> bool:
        """Whether a successor is to go on with it, so that it is written down as it comes."""
        return True

    def note_end(self, journal: Journal, ended_ns: int, /) -> None:
        """Write down how it ended, where that does not follow from its tokens."""

    async def _generate(self, admit: Admit, /) -> None:
        """Hold the runtime's streams open until the end; readers pull from them.

        Calls `admit` when there are outputs.
        """
        raise NotImplementedError

    def batch_parts(self, reader: Reader, /) -> list[Any]:
        """Parts that a reader of another frontend is given at once, from this one's."""
        raise NotImplementedError

    def _take(self) -> None:
        """Take into the record what has come; whatever this raises is the stream's end."""
        raise NotImplementedError

    def _end_by(self, error: ApiError) -> None:
        """End with a failure."""
        raise NotImplementedError

    def _finish(self) -> None:
        """The task is over: what was cut has its end now."""
        raise NotImplementedError

    @property
    def admitted_at(self) -> float:
        """When, by trio's clock, if that was in another life; infinite otherwise."""
        return math.inf if self.adoption is None else self.adoption.admitted_at

    # ---- the task

    async def run(
        self,
        owner: Owner[Any],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task: from the prompt to the end; started when it is admitted.

        Raises `ApiError` when it is not admitted; afterwards nothing: whatever goes wrong is the
        stream's end. Cancellation: its requests are aborted, and it ends as cancelled.
        """
        admit = partial(self._admit, owner, task_status)
        try:
            with self.scope:
                if self.adoption is not None and self.adoption.is_lost:
                    admit()
                    self.end_as_lost()
                else:
                    await self._generate(admit)
            if self._owner is None:  # its time was over before it was admitted
                admit()
        except Exception as error:  # the firewall of a stream: it fails alone
            self._fail(error)
        finally:
            if self._owner is None:
                owner.handle_refused(self)
            else:
                self._finish()
                if not self.is_attached:
                    owner.handle_left(self)

    def _admit(self, owner: Owner[Any], task_status: trio.TaskStatus[None]) -> None:
        """Make the stream known: it has readers from here on."""
        self._owner = owner
        owner.add(self)
        task_status.started()

    def _fail(self, failure: Exception) -> None:
        """Raises `ApiError` before the admission."""
        error = to_api_error(failure, self.names)
        if not isinstance(failure, EngineError | ApiError):
            logger.error("a %s failed; only it ends", self.noun, exc_info=failure)
        if self._owner is None:
            raise error from failure
        if not self.has_ended:
            self._end_by(error)

    def end_as_lost(self) -> None:
        """End a stream that two lives have died of."""
        assert self.adoption is not None
        self.adoption.close()
        self.adoption = attrs.evolve(self.adoption, parts=())
        self._end_by(frontends_died(self.noun, f"{self.noun}_lost"))

    def _note_end(self) -> None:
        """The record has its end: readers, waiters and the owner hear of it."""
        self._ended.set()
        self.wake_readers()
        if self._owner is not None:
            self._owner.end(self)

    async def wait_ended(self) -> None:
        """Return when nothing more is added. Meanwhile slow readers are not waited for."""
        self._waiting += 1
        self.pull()
        try:
            await self._ended.wait()
        finally:
            self._waiting -= 1

    def cancel(self, reason: str) -> None:
        """Ask for the end; idempotent."""
        self.is_cancelled = True
        self.scope.cancel(reason)

    # ---- tokens

    def on_output(self, is_end: bool = False) -> None:
        """There is more to pull; harmless when called again.

        Runs in the task that delivers to all requests, for every token if nothing else waits.
        """
        if is_end or self._waiting or not self._readers:
            self.pull()
            self.wake_readers()
        elif not self.has_more:
            self.has_more = True
            self.wake_readers()

    def pull(self) -> None:
        """Take what has come into the record, and the end if that has come.

        Runs in any task, a writer's too, and never raises: a failure is the stream's end.
        """
        self.has_more = False
        if self.has_ended:
            return
        try:
            self._take()
        except Exception as failure:  # see `_live`
            self._fail(failure)

    def wake_readers(self) -> None:
        """Something may have been added to the record."""
        for reader in self._readers:
            reader.wake_up()

    # ---- readers

    @contextmanager
    def _attached(self, reader: Reader) -> Iterator[Reader]:
        """Read in this block. Raises `ApiError` when too many read already."""
        if len(self._readers) >= READERS_MAX:
            raise too_many_readers(self.noun, READERS_MAX)
        self._readers.append(reader)
        self._extend_life()
        try:
            yield reader
        finally:
            self._readers.remove(reader)
            self._check_abandoned()

    async def catch_up(self, position: Any) -> None:
        """Return when what was lost with the machine up to here is there again.

        Raises `ApiError` 410 where it will not be the same.
        """
        with self.reading(is_client=False) as reader:
            await reader.catch_up(position)

    async def next_batch(self, position: Any, *, is_lost: bool) -> StreamBatch:
        """Read for another frontend what comes behind this position, or comes in a moment.

        What `is_lost` is awaited. Raises `ApiError`.
        """
        with trio.move_on_after(BATCH_WAIT_S) as waiting:
            if is_lost:
                await self.catch_up(position)
        if waiting.cancelled_caught:
            return StreamBatch([], position, is_last=False)
        with self.reading(position, is_client=False) as reader:
            with trio.move_on_after(BATCH_WAIT_S):
                await reader.wait_ready()
            parts = self.batch_parts(reader)
            return StreamBatch(parts, reader.position, reader.done.is_set())

    @property
    def is_attached(self) -> bool:
        """Whether a client reads it, or is to be answered with it."""
        return bool(self._readers or self._holders)

    def held(self) -> "_Hold":
        """Keep it running in this block, without reading."""
        return _Hold(self)

    def await_readers(self) -> None:
        """Let it end if it has no reader for `keep_s`."""
        until_s = trio.current_time() + self.keep_s
        self.scope.deadline = min(until_s, self.deadline_s)

    def _extend_life(self) -> None:
        if self.scope.deadline != self.deadline_s:  # setting it costs
            self.scope.deadline = self.deadline_s

    def _check_abandoned(self) -> None:
        if self._readers:
            return
        self.pull()  # no reader does any more, and it would stop at its credit
        if self._holders:
            return
        is_background = self.order.is_background
        goes_on = is_background or self.keep_s > 0
        if goes_on and not is_background:
            self.await_readers()
        if not self.has_ended:
            if not goes_on:
                self.cancel("its last reader has left")
        elif self._owner is not None:
            self._owner.handle_left(self)


@attrs.define(eq=False)
class _Hold:
    """Block of `ServedStream.held`; a class, as there is one for each stream."""

    stream: ServedStream[Any]

    def __enter__(self) -> None:
        self.stream._holders += 1
        self.stream._extend_life()

    def __exit__(self, *_: object) -> None:
        self.stream._holders -= 1
        self.stream._check_abandoned()
