"""Completion: the surface of chat completions, completions and Messages for a served stream.

A whole answer is made of the same record as the events. A completion that was read to its end is
over: it is kept for readers only while there may be some. `streams.served_stream` has its life.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from typing import ClassVar

import attrs
import trio

from ...engine.messages import FinishReason
from ...runtime.frontend.generation import GenerationFacts, GenerationStream
from ...runtime.journal.journal import Journal
from ...runtime.text.outputs import GenerationOutput, Usage
from ..access_log import Generated
from ..errors import ApiError, engine_error
from ..openai.chat import AnsweredPrompt
from ..openai.responses_request import json_bytes
from ..schema.fields import JsonObject
from ..streams.books import StreamBooks
from ..streams.executions import COME_AGAIN
from ..streams.served_stream import Admit, ServedStream, Wake
from ..streams.stream_reader import StreamReader
from .cursor import CompletionCursor
from .order import CompletionOrder, Opened
from .record import ChoiceRecord, CompletionRecord

# Size of a kept completion beside its request and its output; an estimate.
COMPLETION_BYTES = 4096
# How many tokens of each choice another frontend gets at once.
BATCH_TOKENS_MAX = 256


@attrs.define(eq=False)
class CompletionReader(StreamReader[CompletionCursor, bytes]):
    """Reads frames of one completion."""


@attrs.define(eq=False)
class ServedCompletion(ServedStream[CompletionReader]):
    """A completion, of one choice or more for each prompt."""

    noun: ClassVar[str] = "completion"

    order: CompletionOrder
    record: CompletionRecord = attrs.field(factory=lambda: CompletionRecord([]), init=False)
    # The completion was cut before its end.
    is_cut: bool = attrs.field(default=False, init=False)
    # A source for each prompt, with its choices, while they are generated; and the sources with
    # something to pull.
    _sources: list["_Source"] = attrs.field(factory=list, init=False)
    _ready: list["_Source"] = attrs.field(factory=list, init=False)
    _keeps_output: bool = attrs.field(init=False)
    # Facts of each source, when it is over.
    _facts: list[GenerationFacts] = attrs.field(factory=list, init=False)
    # Choices without an end.
    _open: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._keeps_output = self.order.request.keeps_output

    @property
    def names(self) -> dict[str, str]:
        """Clients' words for the parameters that an error names."""
        return self.order.request.names

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is added."""
        return self.record.has_ended

    def whole(self) -> JsonObject:
        """The whole answer. Raises the failure that it ended with."""
        record = self.record
        if record.error is not None:
            raise record.error
        assert record.usage is not None
        choices = [each.whole() for each in record.choices]
        return self.order.answer(choices[0].prompt).whole(choices, record.usage)

    # ---- how it is kept

    @property
    def size_bytes(self) -> int:
        """An estimate of what it takes to keep it."""
        return COMPLETION_BYTES + json_bytes(self.order.values) + self.record.size_bytes

    def kept_s(self, books: StreamBooks) -> float:
        """How long it is kept after its end; what was cut is no answer."""
        if self.is_cut:
            return 0.0
        if self.order.is_keyed:
            return books.kept_s(is_wanted=True, is_adopted=False)
        return math.inf if self.keep_s > 0 else 0.0

    def note_end(self, journal: Journal, ended_ns: int) -> None:
        """Forget what is no answer: the next life is not to look for one."""
        if self.record.error is not None and self.record.error.status == COME_AGAIN:
            journal.forget(*self.order.names)

    # ---- its task

    async def _generate(self, admit: Admit) -> None:
        """Hold the streams open until the end; readers pull from them."""
        async with AsyncExitStack() as stack:
            order, adoption = self.order, self.adoption
            opening = order.open(stack) if adoption is None else order.reopen(stack, adoption)
            opened = await opening
            admit()
            self._begin(opened)
            for source in self._sources:
                source.stream.listen(source)
                source.on_output(source.stream.has_end)
            await self._wait_in_time()

    async def _wait_in_time(self) -> None:
        """Return at the end; choices that have none at the deadline end by that."""
        deadline = min([each.stream.deadline for each in self._sources], default=math.inf)
        if deadline < math.inf:
            with trio.move_on_at(deadline):
                await self._ended.wait()
            for source in self._sources:
                source.stream.expire()
        await self._ended.wait()

    @property
    def facts(self) -> list[GenerationFacts]:
        """Facts of the request for each prompt so far."""
        return self._facts or [source.stream.facts for source in self._sources]

    def generated(self) -> Generated:
        """The result so far, for the access log."""
        name = self.order.stream_id
        return Generated.of(name, self.record.why, self.facts, self.admitted_at)

    def _finish(self) -> None:
        self._facts = self.facts
        self._sources, self._ready = [], []
        if not self.has_ended:
            self.is_cut = True
            self._end(engine_error())

    def _begin(self, opened: Opened) -> None:
        """Make its record, with a choice or more for each prompt."""
        count, is_open = self.order.request.sampling.n, not self.order.request.echoes_logprobs
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

    def _take(self) -> None:
        while self._ready:
            source = self._ready.pop()
            while (output := source.stream.take_nowait()) is not None:
                if self.has_ended:
                    break
                self._add(source, output)

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
        """Prompt of the first choice, once there is one."""
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

    def _end_by(self, error: ApiError) -> None:
        self._end(error)

    def _end(self, how: Usage | ApiError) -> None:
        self.record.end(how)
        self._note_end()

    # ---- readers

    @contextmanager
    def reading(
        self,
        position: str | None = None,
        wake: Wake | None = None,
        *,
        is_client: bool = True,
        has_ids: bool = True,
    ) -> Iterator["CompletionReader"]:
        """Read in this block, from behind the frame of this id; see `ServedStream.reading`.

        What a client takes in it was sent. `has_ids` puts ids into the frames.
        """
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
        with self._attached(CompletionReader(self, cursor, wake)) as reader:
            yield reader
            self.is_over |= cursor.is_done and is_client

    def reading_first(self, position: str | None) -> AbstractContextManager[CompletionReader]:
        """Read in this block, for the client whose order it is."""
        return self.reading(position, has_ids=self.order.is_kept)

    def batch_parts(self, reader: CompletionReader) -> list[str]:
        """Frames, as one text."""
        frames = reader.take(BATCH_TOKENS_MAX)
        return [frames.decode()] if frames else []


@attrs.define(eq=False)
class _Source:
    """The stream of one prompt, and where its outputs go."""

    completion: ServedCompletion
    stream: GenerationStream
    prompt: AnsweredPrompt
    choices: list[ChoiceRecord]

    def on_output(self, is_end: bool) -> None:
        """Runs in the task that delivers to all requests."""
        self.completion._ready.append(self)
        self.completion.on_output(is_end)
