"""Response: the surface of `POST /v1/responses`, and of lanes of a socket, for a served stream.

Its record numbers each event by the tokens alone; `streams.served_stream` has its life.
"""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import ClassVar

import attrs
import msgspec
import trio

from ...engine.errors import EngineError
from ...engine.messages import FinishReason
from ...engine.request_options import RequestOptions
from ...runtime.frontend.generation import GenerationFacts, GenerationStream
from ...runtime.journal.journal import AdmissionNote, Journal
from ...runtime.text.outputs import GenerationOutput, Usage
from ...runtime.text.prompts import Prompt
from ..access_log import Generated
from ..errors import ApiError
from ..openai.response_events import Ending, Event, Part, Status, ending_of, event_of, notice_of
from ..openai.responses_request import ResponseRequest
from ..openai.tool_use import with_form_behind
from ..schema.fields import JsonObject
from ..streams.adoption import Adoption, is_long
from ..streams.books import StreamBooks
from ..streams.served_stream import Admit, Order, ServedStream, Wake
from ..streams.stream_reader import StreamReader
from .adoption import SURFACE, KeptEnding, KeptResponseRequest, first_tokens
from .history import Conversation, prompt_alone, prompt_of, with_output
from .record import ResponseRecord
from .record_reader import RecordReader

# Limit of one batch of events; a lane's buffer has as many.
BATCH_CHARACTERS_MAX = 64 * 2**10
# Size of an ended response beside its conversation; an estimate.
RESPONSE_BYTES = 4096


@attrs.define(eq=False, kw_only=True)
class ResponseOrder(Order):
    """Order of a response; with `streaming` off its output comes all at once."""

    request: ResponseRequest
    streaming: bool = True
    # The socket session that asks; "" over HTTP.
    asked_in: str = ""
    # Options of the request, where the server has not changed them.
    options: RequestOptions = attrs.field(
        default=attrs.Factory(lambda self: self.request.options, takes_self=True)
    )

    @property
    def session(self) -> str:
        return "" if self.request.store else self.asked_in

    @property
    def keep_s(self) -> float:
        return self.request.keep_s

    def goes_on_s(self, resume_keep_s: float) -> float:
        """How long it goes on without readers.

        The client of one with a key is expected to send it again: a whole answer is made for that,
        as its client cannot say where it stopped reading.
        """
        if not self.is_keyed:
            return self.request.keep_s
        return max(self.request.keep_s, resume_keep_s) if self.request.stream else math.inf

    @property
    def is_streamed(self) -> bool:
        return self.request.stream

    @property
    def is_background(self) -> bool:
        return self.request.background


@attrs.define(eq=False)
class ResponseReader(StreamReader[RecordReader, list[Part]]):
    """Reads events of one response."""


@attrs.define(eq=False)
class Response(ServedStream[ResponseReader]):
    """A response. `conversation` is its whole input."""

    noun: ClassVar[str] = "response"

    order: ResponseOrder
    record: ResponseRecord
    conversation: Conversation
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
    # The conversation that the next response continues, once it was asked for at the end.
    _continued: Conversation | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.deadline_s = self.scope.deadline = self.request.deadline_s
        self.keep_s = self.request.keep_s

    @property
    def response_id(self) -> str:
        return self.order.stream_id

    @property
    def request(self) -> ResponseRequest:
        return self.order.request

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

    # ---- how it is kept

    @property
    def continued(self) -> Conversation:
        """The conversation that the next response continues, of one that has ended."""
        if self._continued is None:
            self._continued = with_output(self.conversation, self.record)
        return self._continued

    @property
    def size_bytes(self) -> int:
        """An estimate of what it takes to keep it."""
        size_bytes = self.continued.size_bytes + self.request.extra_bytes
        return RESPONSE_BYTES + size_bytes + self.record.extra_bytes

    def kept_s(self, books: StreamBooks) -> float:
        """How long it is kept after its end."""
        order, is_adopted = self.order, self.adoption is not None
        is_wanted = self.request.store or order.session or order.is_keyed
        return books.kept_s(is_wanted=bool(is_wanted), is_adopted=is_adopted)

    @property
    def is_resumable(self) -> bool:
        """Whether a successor is to go on with it, so that it is written down as it comes."""
        is_wanted = self.order.streaming or self.order.is_background or self.keep_s > 0
        return is_wanted or is_long(self.request.sampling)

    def _note(self) -> AdmissionNote:
        """Note for its admission."""
        order = self.order
        kept = KeptResponseRequest(
            values=self.request.values,
            before=self.before,
            session=order.session,
            is_keyed=order.is_keyed,
        )
        return AdmissionNote(
            name=order.stream_id,
            surface=SURFACE,
            body=msgspec.json.encode(kept),
            created_at=self.record.events.created_at,
            is_resumable=self.is_resumable,
        )

    def note_end(self, journal: Journal, ended_ns: int) -> None:
        """Write down how it ended, behind which token, and for whom it is kept."""
        ending = self.record.ending
        assert ending is not None
        kept = KeptEnding(
            ending=ending,
            token_count=self.record.token_count,
            ended_ns=ended_ns,
            is_stored=self.request.store,
            session=self.order.session,
            is_keyed=self.order.is_keyed,
            is_opened=self.is_opened,
        )
        journal.end(self.response_id, msgspec.json.encode(kept))

    def end_again(self, generation: GenerationStream, kept: KeptEnding) -> None:
        """Read all that came in a life before, up to the end; what came behind was never shown."""
        if kept.is_opened:
            self.open_reasoning()
        record = self.record
        if self.request.generate:
            with suppress(EngineError):  # so it ended
                while (output := generation.take_nowait()) is not None:
                    room = kept.token_count - record.token_count
                    is_whole = len(output.token_ids) <= room
                    record.append(output if is_whole else first_tokens(output, room))
                    if output.finish_reason is not None:
                        break
            record.inexact_from = generation.choices[0].inexact_from
        self.adoption = Adoption(self.admitted_at, ended_ns=kept.ended_ns)
        self.end(kept.ending)

    # ---- its task

    async def _generate(self, admit: Admit) -> None:
        """Hold the stream open until the end; readers pull from it."""
        if self.adoption is None:
            opening = await self._open()
        else:
            opening = self.adoption.parts[0].open()
        async with opening as stream:
            self._stream = stream
            try:
                if self._granted:
                    stream.grant(self._granted)
                answers = self.request.tools.answer_format
                token_bytes = self.order.generator.token_bytes
                if answers.is_opened(stream.prompt_token_ids, token_bytes):
                    self.open_reasoning()
                admit()
                stream.listen(self)
                self.on_output(stream.has_end)
                await self._ended.wait()
            finally:
                self.pull()
                self._facts, self._stream = stream.facts, None

    def open_reasoning(self) -> None:
        """Before the first token."""
        self.is_opened = True
        self.record.open_reasoning()

    async def _open(self) -> AbstractAsyncContextManager[GenerationStream]:
        order, request = self.order, self.request
        generator, options = order.generator, order.options
        note = self._note() if order.is_noted else None
        prompt, self.prompt = self.prompt, None
        request.values, self.before = {}, None  # needed no more
        prompt = prompt or prompt_of(self.conversation, *request.prompt_parts)
        sampling = request.sampling if request.generate else prompt_alone(request.sampling)
        is_call, whole = request.form_field == "tools", (generator, prompt, sampling, request.tools)
        asked = await with_form_behind(*whole, is_call=is_call, principal=order.principal)
        prompt, sampling = asked
        return generator.generate(
            prompt,
            sampling,
            options if request.generate else options.changed(credit=None),
            request_id=self.response_id,
            principal=order.principal,
            streaming=order.streaming and request.generate,
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
        self, position: int | None = None, wake: Wake | None = None, *, is_client: bool = True
    ) -> Iterator[ResponseReader]:
        """Read in this block, from behind this number; see `ServedStream.reading`.

        Notices are for the client alone.
        """
        cursor = RecordReader.behind(self.record, position, with_notices=is_client)
        with self._attached(ResponseReader(self, cursor, wake)) as reader:
            yield reader

    def batch_parts(self, reader: ResponseReader) -> list[Event]:
        """Events, built."""
        return [event_of(part) for part in reader.take(BATCH_CHARACTERS_MAX)]
