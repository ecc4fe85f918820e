"""Event log of one response: what it has said, with the number of each event.

Sans-IO: outputs of the engine and one ending in, events out. The log keeps what is said, not JSON:
deltas are kept as texts, all other events as marks between them. Readers (`record_reader`) get
events built anew, from behind any number.

Numbers: an event's is max(previous + 1, 8 x output tokens so far), computed token by token,
however many tokens one output brings; a merged delta has the number of its last part. So numbers
grow, may jump, and are a function of the tokens alone: a record built again from the request and
its tokens has the same. Without tools that is

    created 0 · in_progress 1 · output_item.added 2 · content_part.added 3
    delta of the k-th output token (from 1) 8 k
    output_text.done 8 n + 1 · content_part.done 8 n + 2 · output_item.done 8 n + 3
    terminal event 8 n + 4

with one more before the end when that completes a text (a broken character). With tools, items
begin and end as their text comes. Notices (what happened to the request, for those who asked) have
the number of the event before them; a reader that resumes may see some of them twice.

The bound of a record is the length of the model: it keeps what was generated, once.
"""

import bisect
import itertools
from array import array
from collections.abc import Sequence

import attrs

from ...runtime.frontend.generation import GenerationOutput, Logprobs
from ...runtime.text.tool_calls import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    TextPiece,
    ToolCallParser,
    ToolEvent,
)
from ..openai.logprobs import Entry
from ..openai.response_events import Delta, Ending, Event, EventType, Item, ResponseEvents, Status
from ..schema.fields import JsonObject

# A token completes few events: the end of one item and the begin of the next are five.
NUMBERS_OF_TOKEN = 8
# A delta's number and where its text ends; an array keeps some room to grow.
DELTA_BYTES = 10
# One event that is no delta, and one item with its ids; estimates. What every response has, one
# item and its eight events, is in the estimate of a response.
MARK_BYTES, MARKS_ALWAYS = 128, 8
ITEM_BYTES = 1024
# One notice, and the arrays of logprobs beside what is in them.
NOTICE_BYTES = LOGPROBS_BYTES = 512


@attrs.define(eq=False)
class Mark:
    """An event between two deltas: what it says is built when it is read."""

    # How many deltas came before it.
    place: int
    number: int
    kind: str
    item: Item | None = None
    # The event itself: a notice, which is the only one that may have its number again.
    notice: Event | None = None


_BEGINNINGS = (EventType.ITEM_ADDED, EventType.PART_ADDED)
_OPENING = (Mark(0, 0, EventType.CREATED), Mark(0, 1, EventType.IN_PROGRESS))


@attrs.define(eq=False)
class ResponseRecord:
    """Everything that one response says. Only one task appends; the order of calls is time."""

    events: ResponseEvents
    # Output tokens so far, those without text included.
    token_count: int = attrs.field(default=0, init=False)
    # Characters in all deltas.
    size: int = attrs.field(default=0, init=False)
    # The number of the last event that there is.
    last_number: int = attrs.field(default=1, init=False)
    ending: Ending | None = attrs.field(default=None, init=False)
    # In their order; only the last one may be open.
    items: list[Item] = attrs.field(factory=list, init=False)
    marks: list[Mark] = attrs.field(factory=lambda: [*_OPENING], init=False)

    _parser: ToolCallParser | None = attrs.field(default=None, init=False)
    # Of each delta its text; when ended, they are joined into one, and `_offsets` says where each
    # ends: a str for each would cost ten times as much.
    _texts: list[str] = attrs.field(factory=list, init=False)
    _offsets: "array[int] | None" = attrs.field(default=None, init=False)
    # Of each delta its number, growing.
    numbers: "array[int]" = attrs.field(factory=lambda: array("I"), init=False)
    # Of each delta the output tokens so far, if the request asked for ids or logprobs.
    _ends: "array[int] | None" = attrs.field(default=None, init=False)
    # All output tokens, and their logprobs, if the request asked for them.
    _token_ids: "array[int] | None" = attrs.field(default=None, init=False)
    _logprobs: Logprobs | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        request = self.events.request
        if request.keeps_token_ids:
            self._token_ids = array("I")
        if request.options.token_ids or request.sampling.logprobs is not None:
            self._ends = array("I")
        if request.calls_tools:
            self._parser = ToolCallParser(request.tools.calls_max)
        elif request.generate:
            self._open_message()

    @property
    def deltas(self) -> int:
        """How many deltas there are."""
        return len(self.numbers)

    @property
    def text(self) -> str:
        """The whole text so far, without calls."""
        return "".join([self._text_of(item) for item in self.items if item.name is None])

    @property
    def calls(self) -> list[JsonObject]:
        """Function calls so far, as items."""
        return [self._whole(item, {}) for item in self.items if item.name is not None]

    @property
    def token_ids(self) -> list[int] | None:
        """All output tokens, or None when they are not kept."""
        return None if self._token_ids is None else list(self._token_ids)

    @property
    def extra_bytes(self) -> int:
        """About what it takes to keep it, beside the text: places of deltas, events, logprobs."""
        size = (DELTA_BYTES + 5 * (self._ends is not None)) * self.deltas
        size += MARK_BYTES * len(self.marks[MARKS_ALWAYS:]) + ITEM_BYTES * len(self.items[1:])
        size += 5 * len(self._token_ids or ())
        size += NOTICE_BYTES * sum(mark.notice is not None for mark in self.marks)
        return size + (0 if self._logprobs is None else LOGPROBS_BYTES + self._logprobs.size_bytes)

    # ---- what is said

    def append(self, output: GenerationOutput) -> None:
        """Note the next tokens, one by one. One without text is silent, unless ids are wanted."""
        assert self.ending is None
        token_ids, texts = output.token_ids, output.texts
        if self._token_ids is not None:
            self._token_ids.extend(token_ids)
        if output.logprobs is not None:
            self._keep_logprobs(output.logprobs)
        if texts is None:
            if len(token_ids) == 1:  # nearly all
                self._add_token(output.text)
                return
            texts = output.parts
        count = len(token_ids)
        rest = ""
        if len(texts) > count:
            texts, rest = texts[:count], texts[count]
        if self._parser is None:
            self._add_texts(texts, len(output.text) - len(rest))
        else:
            for text in texts:
                self._add_token(text)
        if rest:
            self._add_text(rest)

    def add_notice(self, event: Event) -> None:
        """Note what happened to the request, at this place among the deltas."""
        notice = {**event, "sequence_number": self.last_number}
        self.marks.append(Mark(self.deltas, self.last_number, str(event["type"]), notice=notice))

    def end(self, ending: Ending) -> None:
        """Nothing is added any more. A failure has the terminal event alone. Makes it small."""
        assert self.ending is None
        for event in self._parser.finish() if self._parser is not None else ():
            self._take(event)
        self._parser = None
        is_failure = ending.status is Status.FAILED
        self._close(is_whole=ending.status is Status.COMPLETED, is_silent=is_failure)
        self.ending = ending
        self._mark(self.events.terminal_type(ending))
        self._offsets = array("I", itertools.accumulate(map(len, self._texts)))
        self._texts = ["".join(self._texts)]

    def _keep_logprobs(self, more: Logprobs) -> None:
        if self._logprobs is None:
            self._logprobs = more.between(0, len(more))
        else:
            self._logprobs.extend(more)

    def _add_token(self, text: str) -> None:
        self.token_count += 1
        if self._parser is None:
            if text or self._ends is not None:
                self._add_delta(text)
            return
        self._add_text(text)
        # What may open a call is held back; its tokens need not be.
        if self._ends is not None and self._tokens_left and self._in_message:
            self._add_delta("")

    def _add_text(self, text: str) -> None:
        if self._parser is None:
            self._add_delta(text)
            return
        for event in self._parser.push(text):
            self._take(event)

    def _add_texts(self, texts: list[str], size: int) -> None:
        """As `_add_token` of each, without tools: the last event was at most three behind the
        last token, so that each number is 8 x tokens.
        """
        first, count = self.token_count + 1, len(texts)
        self.token_count += count
        numbers: Sequence[int] = range(8 * first, 8 * (first + count), NUMBERS_OF_TOKEN)
        if self._ends is not None:
            self._ends.extend(range(first, first + count))
        elif not all(texts):
            numbers = array("I", itertools.compress(numbers, texts))
            texts = list(filter(None, texts))
        self.numbers.extend(numbers)
        self._texts += texts
        self.size += size
        if numbers:
            self.last_number = numbers[-1]

    def _add_delta(self, text: str) -> None:
        number = NUMBERS_OF_TOKEN * self.token_count
        if number <= self.last_number:
            number = self.last_number + 1
        self.last_number = number
        self.numbers.append(number)
        self._texts.append(text)
        self.size += len(text)
        if self._ends is not None:
            self._ends.append(self.token_count)

    def _mark(self, kind: str, item: Item | None = None) -> None:
        self.last_number = max(self.last_number + 1, NUMBERS_OF_TOKEN * self.token_count)
        self.marks.append(Mark(self.deltas, self.last_number, kind, item))

    # ---- items

    def _take(self, event: ToolEvent) -> None:
        match event:
            case TextPiece(text=text):
                if not self._in_message:
                    self._open_message()
                self._add_delta(text)
            case CallBegun(index=number, name=name):
                self._close(is_whole=True)
                place = len(self.items), self.deltas
                self.items.append(self.events.call(*place, number=number, name=name))
                self._mark(EventType.ITEM_ADDED, self.items[-1])
            case ArgumentsPiece(text=text):
                self._add_delta(text)
            case CallEnded():
                self._close(is_whole=True)

    @property
    def _in_message(self) -> bool:
        return bool(self.items) and self.items[-1].stop is None and self.items[-1].name is None

    def _open_message(self) -> None:
        item = self.events.message(len(self.items), self.deltas)
        self.items.append(item)
        self._mark(EventType.ITEM_ADDED, item)
        self._mark(EventType.PART_ADDED, item)

    def _close(self, *, is_whole: bool, is_silent: bool = False) -> None:
        """End the open item, if there is one."""
        if not self.items or self.items[-1].stop is not None:
            return
        item = self.items[-1]
        item.stop = self.deltas
        item.status = "completed" if is_whole else "incomplete"
        if is_silent:
            return
        kinds = (
            [EventType.ARGUMENTS_DONE]
            if item.name is not None
            else [EventType.TEXT_DONE, EventType.PART_DONE]
        )
        for kind in [*kinds, EventType.ITEM_DONE]:
            self._mark(kind, item)

    def _text_of(self, item: Item) -> str:
        return self.text_between(item.first, self.deltas if item.stop is None else item.stop)

    def _whole(self, item: Item, built: dict[int, JsonObject]) -> JsonObject:
        """An item's object, built once for all that share `built`."""
        if item.index not in built:
            stop = self.deltas if item.stop is None else item.stop
            logprobs = self._logprobs_of(self._tokens_before(item.first), self._tokens_before(stop))
            built[item.index] = item.whole(self._text_of(item), logprobs)
        return built[item.index]

    # ---- what is read

    def snapshot(self) -> JsonObject:
        """The response object as it is now."""
        return self._object({})

    def _object(self, built: dict[int, JsonObject]) -> JsonObject:
        if self.ending is None:
            return self.events.snapshot("in_progress")
        output = [self._whole(item, built) for item in self.items]
        return self.events.final(self.ending, output, self.token_count)

    def text_between(self, first: int, stop: int) -> str:
        """The text of the deltas `[first, stop)`."""
        if self._offsets is None:
            return self._texts[first] if stop - first == 1 else "".join(self._texts[first:stop])
        begin = self._offsets[first - 1] if first else 0
        return self._texts[0][begin : self._offsets[stop - 1] if stop else 0]

    def delta(self, first: int, stop: int) -> Delta:
        """One delta of the deltas `[first, stop)`, all of one item."""
        items = self.items
        item = items[0]
        if len(items) > 1:
            item = items[bisect.bisect_right(items, first, key=lambda item: item.first) - 1]
        delta = Delta(item, self.numbers[stop - 1], self.text_between(first, stop))
        if self._ends is not None:
            begin, end = self._tokens_before(first), self._ends[stop - 1]
            if self._token_ids is not None and self.events.request.options.token_ids:
                delta.token_ids, delta.token_index = list(self._token_ids[begin:end]), begin
            if self.events.formatter is not None:
                delta.logprobs = self._logprobs_of(begin, end)
        return delta

    def event(self, mark: Mark, built: dict[int, JsonObject]) -> Event:
        """The event of a mark; `built` holds the objects of items for the next ones."""
        if mark.notice is not None:
            return mark.notice
        event: Event = {"type": mark.kind, "sequence_number": mark.number}
        if mark.item is not None:
            is_begin = mark.kind in _BEGINNINGS
            whole = {} if is_begin else self._whole(mark.item, built)
            event |= self.events.of_item(mark.kind, mark.item, whole)
        elif mark.number > 1:
            event |= {"response": self._object(built), **self._last_tokens()}
        else:
            if -1 not in built:
                built[-1] = self.events.snapshot("in_progress")
            event["response"] = built[-1]
        return event

    def first_after(self, number: int) -> tuple[int, int]:
        """The first delta and the first mark behind the event of this number.

        Notices that have this number may not have been seen.
        """
        delta = bisect.bisect_right(self.numbers, number)
        mark = bisect.bisect_left(self.marks, number, key=lambda mark: mark.number)
        if mark < len(self.marks) and self.marks[mark].number == number:
            mark += self.marks[mark].notice is None
        return delta, mark

    def _tokens_before(self, delta: int) -> int:
        """How many tokens the deltas before this one cover."""
        return self._ends[delta - 1] if self._ends is not None and delta else 0

    @property
    def _tokens_left(self) -> int:
        """How many tokens no delta covers, for those who asked for tokens."""
        return 0 if self._ends is None else self.token_count - self._tokens_before(self.deltas)

    def _last_tokens(self) -> JsonObject:
        """What the terminal event says of tokens behind the last delta, which calls may have."""
        found: JsonObject = {}
        begin = self.token_count - self._tokens_left
        if not self._tokens_left:
            return found
        if self._token_ids is not None and self.events.request.options.token_ids:
            found |= {"token_ids": list(self._token_ids[begin:]), "token_index": begin}
        if self.events.formatter is not None:
            found["logprobs"] = self._logprobs_of(begin, self.token_count)
        return found

    def _logprobs_of(self, first: int, stop: int) -> list[Entry]:
        """Of the tokens `[first, stop)`, if they were asked for."""
        if self._logprobs is None:
            return []
        return self.events.format_logprobs(self._logprobs.between(first, stop))

    def check_invariants(self) -> None:
        """For property tests: numbers grow, sizes are sums, one item at most is open."""
        numbers = [mark.number for mark in self.marks if mark.notice is None]
        assert sorted({*numbers, *self.numbers}) == sorted([*numbers, *self.numbers])
        assert list(self.numbers) == sorted(self.numbers)
        assert max([*numbers, *self.numbers]) == self.last_number
        assert self.size == len(self.text_between(0, self.deltas))
        assert self._token_ids is None or len(self._token_ids) == self.token_count
        assert self._ends is None or len(self._ends) == self.deltas
        places = [(mark.place, mark.number) for mark in self.marks]
        assert places == sorted(places)
        assert all(item.stop is not None for item in self.items[:-1])
