"""Life of one response, from its admission until it is forgotten: task, readers, cancel scope.

It is above every connection: readers come and go, each with a cursor of its own. When the last one
has left, the response is aborted, at once or after the time that its request asked for.

No task moves tokens. The collector of the request's outputs calls `on_output` once, readers are
woken, and the first that takes pulls everything into the record; so tokens that come meanwhile cost
nothing and are merged, and a request whose readers are all behind meets its credit and is paused.
Without readers, or while a caller waits for the end, outputs are pulled when they come.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import attrs
import trio

from ...engine.errors import EngineError
from ...engine.messages import FinishReason
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import GenerationFacts, GenerationStream, Generator
from ...runtime.text.outputs import GenerationOutput, Usage
from ...runtime.text.prompts import Prompt
from ..access_log import Generated
from ..errors import ApiError, to_api_error, too_many_readers
from ..openai.response_events import Ending, Status, ending_of, notice_of
from ..openai.responses_request import ResponseRequest
from ..schema.fields import JsonObject
from .behind_reasoning import with_form_behind
from .history import Conversation, prompt_alone, prompt_of
from .record import ResponseRecord
from .record_reader import RecordReader
from .response_reader import ResponseReader, Wake
from .store_interface import Store

logger = logging.getLogger(__name__)
# Of one response; each costs a connection anyway.
READERS_MAX = 8


@attrs.define(eq=False)
class Response:
    """See above. `conversation` is its whole input; `session` is the one socket session that may
    continue it, when it is not to be stored; with `streaming` off its output comes all at once.
    Tokens may wait for more of them for `merge_s`.
    """

    record: ResponseRecord
    principal: str
    conversation: Conversation
    session: str = ""
    streaming: bool = True
    merge_s: float = 0.0
    # Its request has an idempotency key, whose claim it holds.
    is_keyed: bool = False
    # What the model is given, until it is asked, where that is not the whole conversation.
    prompt: Prompt | None = None
    # What it continues, until its admission was noted.
    before: Conversation | None = None
    # What goes on, until its end, where a life of this frontend before has begun it; and when.
    adopted: AdoptedStream | None = None
    admitted_at: float = math.inf
    # When it ended, by CLOCK_MONOTONIC, if that was in a life of this frontend before.
    ended_ns: int | None = None

    # How long it goes on without readers, in seconds.
    keep_s: float = attrs.field(init=False)
    # Around the generation; its deadline is the request's, or the end of the time without readers.
    scope: trio.CancelScope = attrs.field(init=False)
    # Readers know that there is more to pull.
    has_more: bool = attrs.field(default=False, init=False)
    # What it is pulled from, while it generates; and where it is known since its admission.
    _stream: GenerationStream | None = attrs.field(default=None, init=False)
    _store: Store["Response"] | None = attrs.field(default=None, init=False)
    # Tokens granted before there was a stream.
    _granted: int = attrs.field(default=0, init=False)
    _facts: GenerationFacts = attrs.field(default=GenerationFacts(Usage(0, 0)), init=False)
    # The prompt has opened the model's reasoning.
    is_opened: bool = attrs.field(default=False, init=False)
    _cancel_reason: str | None = attrs.field(default=None, init=False)
    # Readers of events; callers for whom it must go on; callers that wait for its end.
    _readers: list[ResponseReader] = attrs.field(factory=list, init=False)
    _holders: int = attrs.field(default=0, init=False)
    _waiting: int = attrs.field(default=0, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.keep_s = self.request.keeping.keep_s
        self.scope = trio.CancelScope(deadline=self.request.keeping.deadline_s)

    @property
    def response_id(self) -> str:
        """Its id."""
        return self.record.events.response_id

    @property
    def request(self) -> ResponseRequest:
        """What was asked."""
        return self.record.events.request

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is added."""
        return self.record.ending is not None

    async def wait_ended(self) -> JsonObject:
        """The final response object. Meanwhile slow readers are not waited for."""
        self._waiting += 1
        self.pull()
        try:
            await self._ended.wait()
        finally:
            self._waiting -= 1
        return self.record.snapshot()

    def whole(self) -> JsonObject:
        """Its object as it is now. Raises the failure that it ended with."""
        ending = self.record.ending
        if ending is not None and ending.error is not None:
            raise ending.error
        return self.record.snapshot()

    def cancel(self, reason: str) -> None:
        """Ask for the end; idempotent. The response ends with status `cancelled`."""
        if self._cancel_reason is None:
            self._cancel_reason = reason
        self.scope.cancel(reason)

    def grant(self, tokens: int) -> None:
        """The client allows so many tokens more. Never waits; of no effect after the end."""
        if self._stream is None:
            self._granted += tokens
        else:
            self._stream.grant(tokens)

    @property
    def client_credit(self) -> int | None:
        """All that the client has granted so far; None without a limit, or after the end."""
        return None if self._stream is None else self._stream.client_credit

    def grant_up_to(self, credit: int) -> None:
        """The client allows so many tokens in all; harmless when it has said so before."""
        granted = self.client_credit
        if granted is not None and credit > granted:
            self.grant(credit - granted)

    # ---- its task

    async def run(
        self,
        generator: Generator,
        store: Store["Response"],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task `response`: from the prompt to the end; started when it is admitted.

        Raises `ApiError` when it is not admitted; afterwards nothing: whatever goes wrong is the
        response's end. Cancellation: the request is aborted, the response ends as cancelled.
        """
        try:
            with self.scope:
                await self._generate(generator, store, task_status)
            if self._store is None:  # its time was over before it was admitted
                self._admit(store, task_status)
        except Exception as error:  # the firewall of a response: it fails alone
            self._fail(error)
        finally:
            if self._store is not None:
                self.end(self._ending_when_cut())

    async def _generate(
        self, generator: Generator, store: Store["Response"], task_status: trio.TaskStatus[None]
    ) -> None:
        """Holds the stream open until the end; readers pull from it."""
        adopted = self.adopted
        opening = await self._open(generator, store) if adopted is None else adopted.open()
        async with opening as stream:
            self._stream = stream
            try:
                if self._granted:
                    stream.grant(self._granted)
                self.note_prompt(generator, stream)
                self._admit(store, task_status)
                stream.listen(self)
                self.on_output(stream.has_end)
                await self._ended.wait()
            finally:
                self.pull()
                self._facts, self._stream = stream.facts, None

    def note_prompt(self, generator: Generator, stream: GenerationStream) -> None:
        """Where the answer begins: the prompt may have opened the model's reasoning."""
        answers = self.request.tools.answer_format
        if answers.is_opened(stream.prompt_token_ids, generator.token_bytes):
            self.open_reasoning()

    def open_reasoning(self) -> None:
        """Before the first token."""
        self.is_opened = True
        self.record.open_reasoning()

    async def _open(
        self, generator: Generator, store: Store["Response"]
    ) -> AbstractAsyncContextManager[GenerationStream]:
        request, options, note = self.request, self.request.options, store.note_of(self)
        prompt, self.prompt = self.prompt, None
        request.values, self.before = {}, None  # needed no more
        prompt = prompt or prompt_of(self.conversation, *request.prompt_parts)
        sampling = request.sampling if request.generate else prompt_alone(request.sampling)
        is_call, whole = request.form_field == "tools", (generator, prompt, sampling, request.tools)
        asked = await with_form_behind(*whole, is_call=is_call, principal=self.principal)
        prompt, sampling = asked
        return generator.generate(
            prompt,
            sampling,
            request_id=self.response_id,
            principal=self.principal,
            cache_salt=options.cache_salt,
            priority=options.priority,
            inexact_ok=options.inexact_ok,
            engine=options.data_parallel_rank,
            streaming=self.streaming and request.generate,
            events=options.events,
            credit=request.keeping.credit if request.generate else None,
            merge_s=self.merge_s,
            note=note,
        )

    def _admit(self, store: Store["Response"], task_status: trio.TaskStatus[None]) -> None:
        """From here on it is known, and has readers."""
        self._store = store
        store.add(self)
        task_status.started()

    def _fail(self, failure: Exception) -> None:
        """Raises `ApiError` before the admission."""
        error = to_api_error(failure, self.request.names)
        if not isinstance(failure, EngineError | ApiError):
            logger.error("a response failed; only it ends", exc_info=failure)
        if self._store is None:
            raise error from failure
        self.end(Ending(status=Status.FAILED, usage=self.usage, error=error))

    def end(self, ending: Ending) -> None:
        """Set how it ended, for readers and waiters; the first end stays."""
        if self.has_ended:
            return
        if ending.status is Status.COMPLETED and ending.completed_at is None:
            ending = attrs.evolve(ending, completed_at=int(time.time()))
        self.record.end(ending)
        self._ended.set()
        self.wake_readers()
        if self._store is not None:
            self._store.end(self)

    @property
    def usage(self) -> Usage:
        """Tokens that were taken so far."""
        return self._facts.usage if self._stream is None else self._stream.usage

    def generated(self) -> Generated:
        """What came of it so far, for the access log."""
        facts = self._facts if self._stream is None else self._stream.facts
        end = "" if self.record.ending is None else self.record.ending.why
        return Generated.of(self.response_id, end, [facts], self.admitted_at)

    def _ending_when_cut(self) -> Ending:
        """What the end is when the scope was cancelled or its deadline has passed."""
        late = trio.current_time() >= self.request.keeping.deadline_s
        if late and self._cancel_reason is None:
            return Ending(status=Status.INCOMPLETE, usage=self.usage, reason="deadline")
        return Ending(status=Status.CANCELLED, usage=self.usage)

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

        Runs in any task, a writer's too, and never raises: a failure is the response's end.
        """
        self.has_more = False
        stream = self._stream
        if stream is None or self.has_ended:
            return
        try:
            while (output := stream.take_nowait()) is not None:
                if self.request.generate:
                    self._add(output)
                if output.finish_reason is not None:
                    self.end(self._ending_of(output.finish_reason))
                    return
        except Exception as failure:  # see `run`
            self._fail(failure)

    def _add(self, output: GenerationOutput) -> None:
        for event in output.events:
            self.record.add_notice(notice_of(event, self.response_id, self.record.token_count))
            if not event.exact and self.record.inexact_from is None:
                self.record.inexact_from = self.record.token_count
        self.record.append(output)

    def _ending_of(self, reason: FinishReason) -> Ending:
        return ending_of(reason if self.request.generate else FinishReason.STOP, self.usage)

    def wake_readers(self) -> None:
        """Something may have been added to the record."""
        for reader in self._readers:
            reader.wake_up()

    # ---- readers

    @contextmanager
    def reading(
        self,
        starting_after: int | None = None,
        wake: Wake | None = None,
        *,
        with_notices: bool = True,
    ) -> Iterator[ResponseReader]:
        """Read in this block, from behind this number. `wake` is called when there is more.

        Raises `ApiError` for a number that is not there yet, or when too many read already.
        """
        if len(self._readers) >= READERS_MAX:
            raise too_many_readers("response", READERS_MAX)
        cursor = RecordReader.behind(self.record, starting_after, with_notices=with_notices)
        reader = ResponseReader(self, cursor, wake)
        self._readers.append(reader)
        self._extend_life()
        try:
            yield reader
        finally:
            self._readers.remove(reader)
            self._check_abandoned()

    def await_readers(self) -> None:
        """Without any for `keep_s`, it ends."""
        until_s = trio.current_time() + self.keep_s
        self.scope.deadline = min(until_s, self.request.keeping.deadline_s)

    @property
    def is_attached(self) -> bool:
        """Whether somebody reads it, or is to answer with it."""
        return bool(self._readers or self._holders)

    def held(self) -> "_Hold":
        """Keep it running in this block, without reading."""
        return _Hold(self)

    def _extend_life(self) -> None:
        deadline_s = self.request.keeping.deadline_s
        if self.scope.deadline != deadline_s:  # setting it costs
            self.scope.deadline = deadline_s

    def _check_abandoned(self) -> None:
        if self.has_ended:
            if self._store is not None and not self.is_attached:
                self._store.handle_left(self)
            return
        if self._readers:
            return
        self.pull()  # no reader does any more, and it would stop at its credit
        if self._holders or self.has_ended or self.request.background:
            return
        if self.keep_s:
            self.await_readers()
        else:
            self.cancel("its last reader has left")


@attrs.define(eq=False)
class _Hold:
    """See `Response.held`; a class, as there is one for each response."""

    response: Response

    def __enter__(self) -> None:
        self.response._holders += 1
        self.response._extend_life()

    def __exit__(self, *_: object) -> None:
        self.response._holders -= 1
        self.response._check_abandoned()
