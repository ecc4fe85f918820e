"""Life of one chat completion or completion, from its admission until its client has had all of it.

It is above every connection. Of a stream readers come and go, each with a cursor of its own, and
the one that asked for it is the first; a whole answer is made of the same record. Who holds it, as
a reader or to wait for its end, keeps it; without, it goes on, and is kept, for the time that its
request asked for, and if that is none it ends at once.

As with responses no task moves tokens: collectors call, a reader that was woken pulls, and without
readers they are pulled when they come.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Protocol

import attrs
import trio

from ...engine.errors import EngineError
from ...engine.messages import FinishReason
from ...nurseries.tasks.parking import ParkingPlace
from ...runtime.frontend.generation import GenerationFacts, GenerationStream
from ...runtime.text.outputs import GenerationOutput, Usage
from ..errors import ApiError, engine_error, frontends_died, to_api_error, too_many_readers
from ..openai.chat import AnsweredPrompt
from ..responses.recomputed import wait_recomputed
from ..schema.fields import JsonObject
from .cursor import CompletionCursor
from .order import AdoptedOrder, CompletionOrder, Streams
from .record import ChoiceRecord, CompletionRecord

logger = logging.getLogger(__name__)
# Of one completion; each costs a connection anyway.
READERS_MAX = 8


class Owner(Protocol):
    """Where a completion is known from its admission on."""

    def add(self, completion: "ServedCompletion") -> None:
        """It was admitted."""

    def settle(self, completion: "ServedCompletion") -> None:
        """It has ended, and is not held; harmless when repeated."""


@attrs.define(eq=False)
class ServedCompletion:
    """See above. `streams` opens what it is made of; `keep_s` is how long it may be left alone."""

    order: CompletionOrder
    streams: Streams
    owner: Owner
    keep_s: float
    record: CompletionRecord = attrs.field(factory=lambda: CompletionRecord([]), init=False)
    # Around the generation; its deadline is the end of the time without holders.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # Its client has had all of it.
    is_over: bool = attrs.field(default=False, init=False)
    # It ended because it was cancelled.
    is_cut: bool = attrs.field(default=False, init=False)
    # One for each prompt, with its choices, while it lives.
    _sources: list["_Source"] = attrs.field(factory=list, init=False)
    # Those with something to pull.
    _ready: list["_Source"] = attrs.field(factory=list, init=False)
    _readers: list["CompletionReader"] = attrs.field(factory=list, init=False)
    _holders: int = attrs.field(default=0, init=False)
    _is_admitted: bool = attrs.field(default=False, init=False)
    _keeps_output: bool = attrs.field(init=False)
    # What came of each of them, when that is over.
    _facts: list[GenerationFacts] = attrs.field(factory=list, init=False)
    # Choices without an end.
    _open: int = attrs.field(default=0, init=False)
    # For those who wait for the end, if any do.
    _ended: trio.Event | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._keeps_output = self.order.keeps_output

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is added."""
        return self.record.has_ended

    async def wait_ended(self) -> None:
        """Return when nothing more is added."""
        if not self.has_ended:
            if self._ended is None:
                self._ended = trio.Event()
            await self._ended.wait()

    def whole(self) -> JsonObject:
        """The whole answer. Raises the failure that it ended with."""
        record = self.record
        if record.error is not None:
            raise record.error
        assert record.usage is not None
        choices = [each.whole() for each in record.choices]
        return self.order.answer(choices[0].prompt).whole(choices, record.usage)

    def cancel(self, reason: str) -> None:
        """End it here and now; idempotent. Its readers see an error if it had not ended."""
        self.scope.cancel(reason)

    # ---- its task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `completion`: from the prompts to the end.

        Raises `ApiError` when it is not admitted; afterwards nothing: a failure is its end.
        Cancellation: its requests are aborted.
        """
        try:
            with self.scope:
                async with AsyncExitStack() as stack:
                    await self._begin(stack)
                    task_status.started()
                    for source in self._sources:
                        source.stream.listen(source)
                    self._ready = [*self._sources]
                    if not self._readers:
                        self.pull()
                    await self._hold()
            if not self._is_admitted:  # its time was over before that
                self._admit()
                task_status.started()
        except Exception as error:  # the firewall of a completion: it fails alone
            self._fail(error)
        finally:
            self._close()
            if self._is_admitted and not self._holders:
                self.owner.settle(self)

    async def collect(self) -> None:
        """Run to the end in the caller's task, which is its only one, and settles it.

        Raises as `run`. Cancellation: its requests are aborted.
        """
        try:
            async with AsyncExitStack() as stack:
                await self._begin(stack)
                for source in self._sources:
                    async for output in source.stream:
                        self._add(source, output)
        except Exception as error:  # see `run`
            self._fail(error)
        finally:
            self._close()

    @property
    def facts(self) -> list[GenerationFacts]:
        """What came of the request for each prompt so far."""
        return self._facts or [source.stream.facts for source in self._sources]

    def _admit(self) -> None:
        """From here on it is known."""
        self._is_admitted = True
        self.owner.add(self)

    def _close(self) -> None:
        """Nothing more comes."""
        self._facts = self.facts
        self._sources, self._ready = [], []
        if self._is_admitted and not self.has_ended:
            self.is_cut = True
            self._fail(engine_error())

    async def _hold(self) -> None:
        """Holds the streams open; readers pull from them. What has no end in time ends."""
        deadline = min([source.stream.deadline for source in self._sources], default=math.inf)
        if deadline < math.inf:
            with trio.move_on_at(deadline):
                await self.wait_ended()
            for source in self._sources:
                source.stream.expire()
        await self.wait_ended()

    async def _begin(self, stack: AsyncExitStack) -> None:
        """Open its streams, until the stack is left; it is admitted then."""
        opened = await self.streams.open(stack)
        self._admit()
        if opened is None:
            self._end(frontends_died("completion", "completion_lost"))
            return
        count, is_open = self.order.request.sampling.n, not self.order.echoes_logprobs
        choices: list[ChoiceRecord] = []
        for stream, prompt in opened:
            begin = len(choices)
            made = [ChoiceRecord(begin + place, prompt, is_open) for place in range(count)]
            choices += made
            if stream is not None:
                self._sources.append(_Source(self, stream, prompt, made))
                for choice, known in zip(made, stream.choices, strict=True):
                    choice.inexact_from = known.inexact_from
                continue
            for choice in made:
                choice.finish_reason = FinishReason.LENGTH
        self.record = CompletionRecord(choices)
        self._open = count * len(self._sources)
        if not self._open:
            self._end(Usage(sum(len(prompt.token_ids) for _, prompt in opened), 0))

    # ---- tokens

    def pull(self) -> None:
        """Take what has come into the record. Runs in any task and never raises."""
        while self._ready:
            source = self._ready.pop()
            try:
                while (output := source.stream.take_nowait()) is not None:
                    if self.has_ended:
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
            source.prompt.logprobs = source.stream.prompt_logprobs
            self._open -= 1
            if not self._open:
                self._end(self._usage())

    def _usage(self) -> Usage:
        usage = self.order.usage([each.stream for each in self._sources])
        reasoning_tokens = self.order.reasoning_tokens(self.record.choices)
        return attrs.evolve(usage, reasoning_tokens=reasoning_tokens)

    @property
    def _prompt(self) -> AnsweredPrompt | None:
        """Of its first choice, once there is one."""
        return self.record.choices[0].prompt if self.record.choices else None

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
        """Raises `ApiError` before the admission."""
        if not self._is_admitted:
            raise to_api_error(failure, self.order.request.names) from failure
        if not isinstance(failure, EngineError | ApiError):
            logger.error("a completion failed; only it ends", exc_info=failure)
        if not self.has_ended:
            self._end(to_api_error(failure, self.order.request.names))

    def _end(self, how: Usage | ApiError) -> None:
        self.record.end(how)
        if self._ended is not None:
            self._ended.set()
        for reader in self._readers:
            reader.wake_up()

    # ---- readers

    @contextmanager
    def held(self) -> Iterator[None]:
        """It goes on, and is kept, in this block."""
        self._holders += 1
        self.scope.deadline = math.inf
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                self.await_readers()

    @contextmanager
    def reading(
        self, position: str | None = None, *, is_last: bool = True, has_ids: bool = True
    ) -> Iterator["CompletionReader"]:
        """Read in this block, from behind the frame of this id; what is taken in it was sent.

        With `is_last` it is over when all was; `has_ids` puts ids into the frames. Raises
        `ApiError` for an id that is not there yet, or when too many read already.
        """
        if len(self._readers) >= READERS_MAX:
            raise too_many_readers("completion", READERS_MAX)
        self.pull()
        options = self.order.request.options
        cursor = CompletionCursor(
            self.record,
            self.order.answer(self._prompt),
            options.include_usage,
            has_ids=has_ids,
            continuous_usage=options.continuous_usage,
        )
        if position is not None:
            cursor.go_behind(position)
        reader = CompletionReader(self, cursor)
        with self.held():
            self._readers.append(reader)
            try:
                yield reader
                self.is_over |= cursor.is_done and is_last
            finally:
                self._readers.remove(reader)

    async def catch_up(self, position: str) -> None:
        """Return when the frame of this id is there, should its journal have lost it.

        Raises `ApiError` 410 where it will not be the same.
        """
        if not isinstance(self.streams, AdoptedOrder):
            return
        with self.reading(is_last=False) as reader:
            cursor = reader.cursor
            await wait_recomputed(
                reader,
                lambda: not cursor.is_beyond(position),
                lambda: cursor.is_inexact(position),
            )

    def await_readers(self) -> None:
        """Without any for `keep_s`, it is over."""
        self.pull()  # no reader does any more, and it would stop at its credit
        if self.keep_s > 0:
            self.scope.deadline = trio.current_time() + self.keep_s
        if self.has_ended:
            self.owner.settle(self)
        elif self.keep_s <= 0:
            self.cancel("its last reader has left")


@attrs.define(eq=False)
class _Source:
    """The stream of one prompt, and where its outputs go."""

    completion: ServedCompletion
    stream: GenerationStream
    prompt: AnsweredPrompt
    choices: list[ChoiceRecord]

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

    completion: ServedCompletion
    cursor: CompletionCursor
    _place: ParkingPlace = attrs.field(factory=ParkingPlace, init=False)

    @property
    def is_done(self) -> bool:
        """Whether everything was taken."""
        return self.cursor.is_done

    @property
    def position(self) -> str | None:
        """The id of the last frame; None where frames have none."""
        return self.cursor.position

    def wake_up(self) -> None:
        """There may be more."""
        self._place.wake()

    async def wait_ready(self) -> None:
        """Return when there is something to take, nothing will come any more, or it was woken."""
        if not (self.completion._ready or self.cursor.is_ready or self.cursor.is_done):
            await self._place.park()

    def take(self, tokens_max: int | None = None) -> bytes:
        """The next frames; see `CompletionCursor.take`."""
        if self.completion._ready:
            self.completion.pull()
        return self.cursor.take(tokens_max)
