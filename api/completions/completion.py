"""Life of one streamed completion, from its admission until its client has had all of it.

It is above every connection: readers come and go, each with a cursor of its own, and the one that
asked for it is the first. It is over when a reader was given everything, or after the time that its
request asked for without readers; at once if that is none.

As with responses no task moves tokens: collectors call, a reader that was woken pulls, and without
readers they are pulled when they come.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import attrs
import trio

from ...engine.errors import EngineError
from ...engine.messages import FinishReason
from ...nurseries.tasks.parking import ParkingPlace
from ...runtime.frontend.generation import GenerationStream
from ...runtime.text.outputs import GenerationOutput
from ..errors import ApiError, engine_error, frontends_died, to_api_error, too_many_readers
from ..openai.chat import AnsweredPrompt
from .cursor import CompletionCursor
from .order import CompletionOrder, Streams
from .record import ChoiceRecord, CompletionRecord

logger = logging.getLogger(__name__)
# Of one completion; each costs a connection anyway.
READERS_MAX = 8


@attrs.define(eq=False)
class StreamedCompletion:
    """See above. `streams` opens what it reads; so long it waits without readers: `keep_s`."""

    order: CompletionOrder
    streams: Streams
    keep_s: float
    # Called when it has ended; it may be read after that.
    on_ended: Callable[[], None]
    record: CompletionRecord = attrs.field(factory=lambda: CompletionRecord([]), init=False)
    # Around the generation; its deadline is the end of the time without readers.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # One for each prompt, with its choices, while it lives.
    _sources: list["_Source"] = attrs.field(factory=list, init=False)
    # Those with something to pull.
    _ready: list["_Source"] = attrs.field(factory=list, init=False)
    _readers: list["CompletionReader"] = attrs.field(factory=list, init=False)
    _is_admitted: bool = attrs.field(default=False, init=False)
    _keeps_output: bool = attrs.field(init=False)
    # Choices without an end.
    _open: int = attrs.field(default=0, init=False)
    _over: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._keeps_output = self.order.keeps_output

    def cancel(self, reason: str) -> None:
        """End it here and now; idempotent. Its readers see an error if it had not ended."""
        self.scope.cancel(reason)

    # ---- its task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `completion`: from the prompts until it is wanted no more.

        Raises `ApiError` when it is not admitted; afterwards nothing: a failure is its end.
        Cancellation: its requests are aborted.
        """
        try:
            with self.scope:
                async with AsyncExitStack() as stack:
                    opened = await self.streams.open(stack)
                    if opened is None:
                        self.record.end(frontends_died("completion", "completion_lost"))
                    else:
                        self._begin([_Source(self, *each) for each in opened])
                    self._is_admitted = True
                    task_status.started()
                    await self._hold()
            if not self._is_admitted:  # its time was over before that
                self._is_admitted = True
                task_status.started()
        except Exception as error:  # the firewall of a completion: it fails alone
            if not self._is_admitted:
                raise to_api_error(error, self.order.request.names) from error
            self._fail(error)
        finally:
            self._sources, self._ready = [], []
            if not self.record.has_ended:
                self._fail(engine_error())

    async def _hold(self) -> None:
        """Holds the streams open; readers pull from them. What has no end in time ends."""
        deadline = min([source.stream.deadline for source in self._sources], default=math.inf)
        with trio.move_on_at(deadline):
            await self._over.wait()
            return
        for source in self._sources:
            source.stream.expire()
        await self._over.wait()

    def _begin(self, sources: list["_Source"]) -> None:
        count = self.order.request.sampling.n
        for place, source in enumerate(sources):
            is_open = not self.order.echoes_logprobs
            source.choices = [
                ChoiceRecord(place * count + each.index, source.prompt, is_open, each.inexact_from)
                for each in source.stream.choices
            ]
        self.record = CompletionRecord([each for source in sources for each in source.choices])
        self._open, self._sources, self._ready = len(self.record.choices), sources, [*sources]
        for source in sources:
            source.stream.listen(source)

    # ---- tokens

    def pull(self) -> None:
        """Take what has come into the record. Runs in any task and never raises."""
        while self._ready:
            source = self._ready.pop()
            try:
                while (output := source.stream.take_nowait()) is not None:
                    if self.record.has_ended:
                        break
                    self._add(source, output)
            except Exception as failure:  # see `run`
                self._fail(failure)

    def _add(self, source: "_Source", output: GenerationOutput) -> None:
        choice, is_last = source.choices[output.index], output.finish_reason is not None
        if output.finish_reason is FinishReason.ERROR:
            raise engine_error()
        if output.events:
            choice.inexact_from = source.stream.choices[output.index].inexact_from
        if self._keeps_output:
            choice.append(output)
        elif is_last:
            choice.finish_reason = FinishReason.LENGTH
        if choice.is_open:
            for reader in self._readers:
                reader.cursor.note(choice.index)
        else:
            self._open_choices(source)
        if is_last:
            self._open -= 1
            if not self._open:
                self.record.end(self.order.usage([each.stream for each in self._sources]))
                self.on_ended()

    def _open_choices(self, source: "_Source") -> None:
        """Let choices begin whose prompt's logprobs have come, if that is what they wait for."""
        first = source.stream.choices[0]
        if first.token_count or first.finish_reason is not None:
            source.prompt.logprobs = source.stream.prompt_logprobs
            for choice in source.choices:
                choice.is_open = True
                for reader in self._readers:
                    reader.cursor.note(choice.index)

    def _fail(self, failure: Exception) -> None:
        if not isinstance(failure, EngineError | ApiError):
            logger.error("a completion failed; only it ends", exc_info=failure)
        if not self.record.has_ended:
            self.record.end(to_api_error(failure))
            self.on_ended()
            for reader in self._readers:
                reader.wake_up()

    # ---- readers

    @contextmanager
    def reading(
        self, position: str | None = None, *, is_last: bool = True
    ) -> Iterator["CompletionReader"]:
        """Read in this block, from behind the frame of this id; what is taken in it was sent.

        With `is_last` it is over when all was. Raises `ApiError` for an id that is not there yet,
        or when too many read already.
        """
        if len(self._readers) >= READERS_MAX:
            raise too_many_readers("completion", READERS_MAX)
        self.pull()
        includes_usage = self.order.request.options.include_usage
        cursor = CompletionCursor(self.record, self.order.answer(), includes_usage)
        if position is not None:
            cursor.go_behind(position)
        reader = CompletionReader(self, cursor)
        self._readers.append(reader)
        self.scope.deadline = math.inf
        try:
            yield reader
            if cursor.is_done and is_last:
                self._over.set()
        finally:
            self._readers.remove(reader)
            if not self._readers:
                self.await_readers()

    def await_readers(self) -> None:
        """Without any for `keep_s`, it is over."""
        self.pull()  # no reader does any more, and it would stop at its credit
        if self.keep_s > 0:
            self.scope.deadline = trio.current_time() + self.keep_s
        else:
            self.cancel("its last reader has left")


@attrs.define(eq=False)
class _Source:
    """The stream of one prompt, and where its outputs go."""

    completion: StreamedCompletion
    stream: GenerationStream
    prompt: AnsweredPrompt
    choices: list[ChoiceRecord] = attrs.field(factory=list, init=False)

    def on_output(self, is_end: bool) -> None:
        """Runs in the task that delivers to all requests."""
        completion = self.completion
        completion._ready.append(self)
        if not completion._readers:
            completion.pull()
        elif len(completion._ready) == 1:
            for reader in completion._readers:
                reader.wake_up()


@attrs.define(eq=False)
class CompletionReader:
    """A reader while it is attached; of one task."""

    completion: StreamedCompletion
    cursor: CompletionCursor
    _place: ParkingPlace = attrs.field(factory=ParkingPlace, init=False)

    @property
    def is_done(self) -> bool:
        """Whether everything was taken."""
        return self.cursor.is_done

    def wake_up(self) -> None:
        """There may be more."""
        self._place.wake()

    async def wait_ready(self) -> None:
        """Return when there is something to take, or nothing will come any more."""
        while not (self.completion._ready or self.cursor.is_ready or self.cursor.is_done):
            await self._place.park()

    def take(self, tokens_max: int | None = None) -> bytes:
        """The next frames; see `CompletionCursor.take`."""
        if self.completion._ready:
            self.completion.pull()
        return self.cursor.take(tokens_max)
