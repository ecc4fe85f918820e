"""Response: the surface of `POST /v1/responses`, and of lanes of a socket, for a served stream.

Its record numbers each event by the tokens alone; `streams.served_stream` has its life.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from typing import ClassVar, Protocol

import attrs
import trio

from ...engine.messages import FinishReason
from ...engine.request_options import RequestOptions
from ...runtime.frontend.generation import GenerationFacts, GenerationStream, Generator
from ...runtime.journal.journal import AdmissionNote
from ...runtime.text.outputs import GenerationOutput, Usage
from ...runtime.text.prompts import Prompt
from ..access_log import Generated
from ..errors import ApiError
from ..openai.response_events import Ending, Event, Part, Status, ending_of, event_of, notice_of
from ..openai.responses_request import ResponseRequest
from ..openai.tool_use import with_form_behind
from ..schema.fields import JsonObject
from ..streams.served_stream import Admit, Owner, ServedStream
from ..streams.stream_reader import StreamReader
from .history import Conversation, prompt_alone, prompt_of
from .record import ResponseRecord
from .record_reader import RecordReader

# Limit of one batch of events; a lane's buffer has as many.
BATCH_CHARACTERS_MAX = 64 * 2**10


class Store(Owner["Response"], Protocol):
    """Owner of responses, known here from their admission on."""

    def note_of(self, response: "Response", /) -> AdmissionNote | None:
        """The record of an admission that a successor of this frontend is to find."""


@attrs.define(eq=False)
class ResponseReader(StreamReader[RecordReader, list[Part]]):
    """Reads events of one response."""


Wake = Callable[[ResponseReader], None]


@attrs.define(eq=False)
class Response(ServedStream[ResponseReader]):
    """A response. `conversation` is its whole input; `session` is the one socket session that may
    continue it, when it is not to be stored; with `streaming` off its output comes all at once.
    """

    noun: ClassVar[str] = "response"

    record: ResponseRecord
    principal: str
    conversation: Conversation
    session: str = ""
    streaming: bool = True
    # Options of the request, where the server has not changed them.
    options: RequestOptions = attrs.field(
        default=attrs.Factory(lambda self: self.request.options, takes_self=True)
    )
    # The request has an idempotency key, whose claim this response holds.
    is_keyed: bool = False
    # Prompt for the model, until it is asked, where that is not the whole conversation.
    prompt: Prompt | None = None
    # The conversation that it continues, until its admission was noted.
    before: Conversation | None = None

    # Source that it is pulled from, while it generates; afterwards what came of it.
    _stream: GenerationStream | None = attrs.field(default=None, init=False)
    _facts: GenerationFacts = attrs.field(default=GenerationFacts(Usage(0, 0)), init=False)
    # Tokens granted before there was a stream.
    _granted: int = attrs.field(default=0, init=False)
    # The prompt has opened the model's reasoning.
    is_opened: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.keep_s, self.is_background = self.request.keep_s, self.request.background
        self.deadline_s = self.scope.deadline = self.request.deadline_s

    @property
    def response_id(self) -> str:
        return self.record.events.response_id

    @property
    def request(self) -> ResponseRequest:
        return self.record.events.request

    @property
    def names(self) -> dict[str, str]:
        """Clients' words for the parameters that an error names."""
        return self.request.names

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is added."""
        return self.record.ending is not None

    def whole(self) -> JsonObject:
        """Object of the response as it is now. Raises the failure that it ended with."""
        ending = self.record.ending
        if ending is not None and ending.error is not None:
            raise ending.error
        return self.record.snapshot()

    def grant(self, tokens: int) -> None:
        """The client allows so many tokens more. Never waits; of no effect after the end."""
        if self._stream is None:
            self._granted += tokens
        else:
            self._stream.grant(tokens)

    @property
    def client_credit(self) -> int | None:
        """Tokens that the client has granted so far; None without a limit, or after the end."""
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
        store: Store,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task `response`: from the prompt to the end; started when it is admitted.

        Raises `ApiError` when it is not admitted; afterwards nothing: whatever goes wrong is the
        response's end. Cancellation: the request is aborted, the response ends as cancelled.
        """
        await self._live(store, partial(self._generate, generator, store), task_status)

    async def _generate(self, generator: Generator, store: Store, admit: Admit) -> None:
        """Holds the stream open until the end; readers pull from it."""
        if self.adoption is None:
            opening = await self._open(generator, store)
        else:
            opening = self.adoption.parts[0].open()
        async with opening as stream:
            self._stream = stream
            try:
                if self._granted:
                    stream.grant(self._granted)
                self.note_prompt(generator, stream)
                admit()
                stream.listen(self)
                self.on_output(stream.has_end)
                await self._ended.wait()
            finally:
                self.pull()
                self._facts, self._stream = stream.facts, None

    def note_prompt(self, generator: Generator, stream: GenerationStream) -> None:
        """Note where the answer begins: the prompt may have opened the model's reasoning."""
        answers = self.request.tools.answer_format
        if answers.is_opened(stream.prompt_token_ids, generator.token_bytes):
            self.open_reasoning()

    def open_reasoning(self) -> None:
        """Before the first token."""
        self.is_opened = True
        self.record.open_reasoning()

    async def _open(
        self, generator: Generator, store: Store
    ) -> AbstractAsyncContextManager[GenerationStream]:
        request, options, note = self.request, self.options, store.note_of(self)
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
            options if request.generate else options.changed(credit=None),
            request_id=self.response_id,
            principal=self.principal,
            streaming=self.streaming and request.generate,
            note=note,
        )

    def _end_by(self, error: ApiError) -> None:
        self.end(Ending(status=Status.FAILED, usage=self.usage, error=error))

    def _finish(self) -> None:
        self.end(self._ending_when_cut())

    def end(self, ending: Ending) -> None:
        """Set how it ended, for readers and waiters; the first end stays."""
        if self.has_ended:
            return
        if ending.status is Status.COMPLETED and ending.completed_at is None:
            ending = attrs.evolve(ending, completed_at=int(time.time()))
        self.record.end(ending)
        self._note_end()

    @property
    def usage(self) -> Usage:
        """Tokens that were taken so far."""
        return self._facts.usage if self._stream is None else self._stream.usage

    def generated(self) -> Generated:
        """Facts so far, for the access log."""
        facts = self._facts if self._stream is None else self._stream.facts
        end = "" if self.record.ending is None else self.record.ending.why
        return Generated.of(self.response_id, end, [facts], self.admitted_at)

    def _ending_when_cut(self) -> Ending:
        """Ending when the scope was cancelled or its deadline has passed."""
        if trio.current_time() >= self.deadline_s and not self.is_cancelled:
            return Ending(status=Status.INCOMPLETE, usage=self.usage, reason="deadline")
        return Ending(status=Status.CANCELLED, usage=self.usage)

    # ---- tokens

    def _take(self) -> None:
        stream = self._stream
        if stream is None:
            return
        while (output := stream.take_nowait()) is not None:
            if self.request.generate:
                self._add(output)
            if output.finish_reason is not None:
                self.end(self._ending_of(output.finish_reason))
                return

    def _add(self, output: GenerationOutput) -> None:
        for event in output.events:
            self.record.add_notice(notice_of(event, self.response_id, self.record.token_count))
            if not event.exact and self.record.inexact_from is None:
                self.record.inexact_from = self.record.token_count
        self.record.append(output)

    def _ending_of(self, reason: FinishReason) -> Ending:
        return ending_of(reason if self.request.generate else FinishReason.STOP, self.usage)

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
        cursor = RecordReader.behind(self.record, starting_after, with_notices=with_notices)
        with self._attached(ResponseReader(self, cursor, wake)) as reader:
            yield reader

    def reading_on(self, position: int | None) -> AbstractContextManager[ResponseReader]:
        """Read without notices."""
        return self.reading(position, with_notices=False)

    def batch_parts(self, reader: ResponseReader) -> list[Event]:
        """Events, built."""
        return [event_of(part) for part in reader.take(BATCH_CHARACTERS_MAX)]
