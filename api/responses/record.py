"""Event log of one response: its text, items and ending, with the number of each event.

Sans-IO: outputs of the engine and one ending in, events out. The log keeps no JSON: deltas are kept
as texts, all other events as marks between them. Readers (`record_reader`) get events built anew,
from behind any number.

Numbers: an event's is max(previous + 1, 8 x output tokens so far), computed token by token,
however many tokens one output brings; a merged delta has the number of its last part. So numbers
grow, may jump, and are a function of the tokens alone: a record built again from the request and
its tokens has the same. Without tools that is

    created 0 · in_progress 1 · output_item.added 2 · content_part.added 3
    delta of the k-th output token (from 1) 8 k
    output_text.done 8 n + 1 · content_part.done 8 n + 2 · output_item.done 8 n + 3
    terminal event 8 n + 4

with one more before the end when that completes a text (a broken character). With tools, items
begin and end as their text comes. Notices (events of the request, where they were asked for) have
the number of the event before them; a reader that resumes may see some of them twice.

The bound of a record is the length of the model: it keeps what was generated, once.
"""

import bisect
import itertools
from array import array

import attrs

from ...runtime.text.outputs import GenerationOutput, Logprobs
from ...runtime.text.tool_calls import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    TextPiece,
    ToolCallParser,
    ToolEvent,
)
from ..openai.logprobs import Entry
from ..openai.response_events import (
    TERMINAL_TYPES,
    Delta,
    Ending,
    Event,
    Item,
    ResponseEvents,
    Status,
)
from ..schema.fields import JsonObject

# A token completes few events: the end of one item and the begin of the next are five.
NUMBERS_OF_TOKEN = 8
# A delta's number and where its text ends; an array keeps some room to grow.
DELTA_BYTES = 10
# One mark, and one item with its ids; estimates. What every response has, one item and two marks,
# is in the estimate of a response.
MARK_BYTES, MARKS_ALWAYS = 160, 2
ITEM_BYTES = 1024
# One notice, and the arrays of logprobs beside what is in them.
NOTICE_BYTES = LOGPROBS_BYTES = 512


@attrs.define(eq=False)
class Mark:
    """Events between two deltas, with numbers in a row; they are built when they are read.

    The first mark begins with the two events that every response begins with, the last one of an
    ended response ends with the terminal event. Between them an item opens or, if `is_end`, closes;
    or the mark is one notice.
    """

    # How many deltas came before it.
    place: int
    # Of the first and the last event. A notice has the number of the event before it once more.
    number: int
    last_number: int
    item: Item | None = None
    is_end: bool = False
    notice: Event | None = None


@attrs.define(eq=False)
class ResponseRecord:
    """All output of one response. Only one task appends; the order of calls is time."""

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
    marks: list[Mark] = attrs.field(factory=list, init=False)

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
        item = None
        if request.calls_tools:
            self._parser = ToolCallParser(request.tools.calls_max)
        elif request.generate:
            item = self.events.message(0, 0)
            self.items.append(item)
            self.last_number += item.opening_count
        self.marks.append(Mark(0, 0, self.last_number, item))

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
        size = (DELTA_BYTES + 5 * (self._ends is not None)) * len(self.numbers)
        size += MARK_BYTES * len(self.marks[MARKS_ALWAYS:]) + ITEM_BYTES * len(self.items[1:])
        size += 5 * len(self._token_ids or ())
        size += NOTICE_BYTES * sum(mark.notice is not None for mark in self.marks)
        return size + (0 if self._logprobs is None else LOGPROBS_BYTES + self._logprobs.size_bytes)

    # ---- what is added

    def append(self, output: GenerationOutput) -> None:
        """Add the next tokens, one by one. One without text is silent, unless ids are wanted."""
        assert self.ending is None
        token_ids, texts = output.token_ids, output.texts
        if self._token_ids is not None:
            self._token_ids.extend(token_ids)
        if output.logprobs is not None:
            self._keep_logprobs(output.logprobs)
        if self._parser is not None:
            self._parse(self._parser, output.parts, len(token_ids))
        elif texts is None and len(token_ids) == 1:  # nearly all
            self.token_count += 1
            if output.text or self._ends is not None:
                self._add_delta(output.text)
        else:
            self._add_texts(output, len(token_ids))

    def add_notice(self, event: Event) -> None:
        """Note what happened to the request, at this place among the deltas."""
        number = self.last_number
        notice = {**event, "sequence_number": number}
        self.marks.append(Mark(len(self.numbers), number, number, notice=notice))

    def end(self, ending: Ending) -> None:
        """Nothing is added any more. A failure has the terminal event alone. Makes it small."""
        assert self.ending is None
        if self._parser is not None:
            for event in self._parser.finish():
                self._add_event(event)
            self._parser = None
        self.ending = ending
        item = self._close_item(is_whole=ending.status is Status.COMPLETED)
        if item is not None and ending.status is not Status.FAILED:
            self._mark(item.closing_count + 1, item, is_end=True)
        else:
            self._mark(1, None, is_end=True)
        self._offsets = array("I")
        self._offsets.fromlist([*itertools.accumulate(map(len, self._texts))])
        self._texts = ["".join(self._texts)]

    def _keep_logprobs(self, more: Logprobs) -> None:
        if self._logprobs is None:
            self._logprobs = more.between(0, len(more))
        else:
            self._logprobs.extend(more)

    def _parse(self, parser: ToolCallParser, texts: list[str], count: int) -> None:
        """Read calls out of the texts of `count` tokens, and of what the end completed."""
        for place, text in enumerate(texts):
            self.token_count += place < count
            for event in parser.push(text):
                self._add_event(event)
            # What may open a call is held back; its tokens need not be.
            if self._tokens_left and self._in_message:
                self._add_delta("")

    def _add_texts(self, output: GenerationOutput, count: int) -> None:
        """Add many tokens without tools: the last event was at most three behind the last token,
        so that each number is 8 x tokens.
        """
        texts, rest = output.parts, ""
        if len(texts) > count:
            *texts, rest = texts
        first = NUMBERS_OF_TOKEN * (self.token_count + 1)
        numbers = [*range(first, first + NUMBERS_OF_TOKEN * count, NUMBERS_OF_TOKEN)]
        if self._ends is not None:
            self._ends.extend(range(self.token_count + 1, self.token_count + 1 + count))
        elif "" in texts:
            numbers = [*itertools.compress(numbers, texts)]
            texts = [*filter(None, texts)]
        self.token_count += count
        self.numbers.fromlist(numbers)  # a third of `extend`
        self._texts += texts
        self.size += len(output.text) - len(rest)
        if numbers:
            self.last_number = numbers[-1]
        if rest:
            self._add_delta(rest)

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

    def _mark(self, count: int, item: Item | None, *, is_end: bool = False) -> None:
        """Add `count` events at once."""
        number = max(self.last_number + 1, NUMBERS_OF_TOKEN * self.token_count)
        self.last_number = number + count - 1
        self.marks.append(Mark(len(self.numbers), number, self.last_number, item, is_end))

    # ---- items

    def _add_event(self, event: ToolEvent) -> None:
        match event:
            case TextPiece(text=text):
                if not self._in_message:
                    self._open_item(self.events.message(len(self.items), len(self.numbers)))
                self._add_delta(text)
            case CallBegun(index=number, name=name):
                self._end_item()
                place = len(self.items), len(self.numbers)
                self._open_item(self.events.call(*place, number=number, name=name))
            case ArgumentsPiece(text=text):
                self._add_delta(text)
            case CallEnded():
                self._end_item()

    @property
    def _in_message(self) -> bool:
        return bool(self.items) and self.items[-1].stop is None and self.items[-1].name is None

    def _open_item(self, item: Item) -> None:
        self.items.append(item)
        self._mark(item.opening_count, item)

    def _end_item(self) -> None:
        item = self._close_item(is_whole=True)
        if item is not None:
            self._mark(item.closing_count, item, is_end=True)

    def _close_item(self, *, is_whole: bool) -> Item | None:
        """Close the open item, if there is one."""
        item = self.items[-1] if self.items else None
        if item is None or item.stop is not None:
            return None
        item.stop = len(self.numbers)
        item.status = "completed" if is_whole else "incomplete"
        return item

    def _text_of(self, item: Item) -> str:
        return self.text_between(item.first, len(self.numbers) if item.stop is None else item.stop)

    def _whole(self, item: Item, built: dict[int, JsonObject]) -> JsonObject:
        """An item's object, built once for all that share `built`."""
        if item.index not in built:
            logprobs: list[Entry] = []
            if self._logprobs is not None:
                stop = len(self.numbers) if item.stop is None else item.stop
                tokens = self._tokens_before(item.first), self._tokens_before(stop)
                logprobs = self._logprobs_of(*tokens)
            built[item.index] = item.whole(self._text_of(item), logprobs)
        return built[item.index]

    # ---- for readers

    def snapshot(self) -> JsonObject:
        """The response object as it is now."""
        if self.ending is None:
            return self.events.snapshot("in_progress")
        return self._final(self.ending, {})

    def _final(self, ending: Ending, built: dict[int, JsonObject]) -> JsonObject:
        output = [self._whole(item, built) for item in self.items]
        return self.events.final(ending, output, self.token_count)

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

    def events_of(self, mark: Mark, built: dict[int, JsonObject]) -> list[Event]:
        """The events of a mark; `built` holds the objects of items for the next marks."""
        if mark.notice is not None:
            return [mark.notice]
        item, number = mark.item, mark.number
        events = self.events.opening() if number == 0 else []
        if item is not None and mark.is_end:
            events += item.closing(number, self._whole(item, built))
        elif item is not None:
            events += item.opening(number + len(events))
        if self.ending is not None and mark is self.marks[-1]:
            events.append(self._terminal(self.ending, mark.last_number, built))
        return events

    def _terminal(self, ending: Ending, number: int, built: dict[int, JsonObject]) -> Event:
        terminal: Event = {
            "type": TERMINAL_TYPES[ending.status],
            "sequence_number": number,
            "response": self._final(ending, built),
        }
        return terminal if self._ends is None else {**terminal, **self._last_tokens()}

    def _tokens_before(self, delta: int) -> int:
        """How many tokens the deltas before this one cover."""
        return self._ends[delta - 1] if self._ends is not None and delta else 0

    @property
    def _tokens_left(self) -> int:
        """How many tokens no delta covers, where tokens were asked for."""
        ends = self._ends
        return 0 if ends is None else self.token_count - (ends[-1] if ends else 0)

    def _last_tokens(self) -> JsonObject:
        """Tokens behind the last delta, which calls may have; the terminal event has them."""
        found: JsonObject = {}
        if not self._tokens_left:
            return found
        begin = self.token_count - self._tokens_left
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
        rows = [range(m.number, m.last_number + 1) for m in self.marks if m.notice is None]
        numbers = list(itertools.chain(*rows))
        assert sorted({*numbers, *self.numbers}) == sorted([*numbers, *self.numbers])
        assert list(self.numbers) == sorted(self.numbers)
        assert max([*numbers, *self.numbers]) == self.last_number
        assert self.size == len(self.text_between(0, len(self.numbers)))
        assert self._token_ids is None or len(self._token_ids) == self.token_count
        assert self._ends is None or len(self._ends) == len(self.numbers)
        places = [(mark.place, mark.number) for mark in self.marks]
        assert places == sorted(places)
        assert all(item.stop is not None for item in self.items[:-1])
