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
begin and end as their text comes. Notices (events of the request) have the number of the event
before them: one that resumes may see some twice.

The bound of a record is the length of the model: it keeps what was generated, once.
"""

import bisect
import sys
from array import array
from collections.abc import Sequence

import attrs

from ...runtime.text.answer_format import AnswerParser
from ...runtime.text.outputs import GenerationOutput
from ...runtime.text.tool_calls import (
    AnswerEvent,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ReasoningPiece,
    TextPiece,
)
from ..openai.logprobs import Entry
from ..openai.response_events import (
    TERMINAL_TYPES,
    Delta,
    Ending,
    Event,
    Mark,
    ResponseEvents,
    Status,
)
from ..openai.response_items import Item
from ..schema.fields import JsonObject
from .asked_tokens import NUMBER_BYTES, AskedTokens

# A token completes few events: the end of one item and the begin of the next are five.
NUMBERS_OF_TOKEN = 8
# A pointer to a delta's text, with room to grow.
DELTA_BYTES = 10
# Sizes of a mark, an item with its ids, and a notice. What every response has, one item and two
# marks, is in the estimate of a response.
MARK_BYTES, MARKS_ALWAYS, ITEM_BYTES = 160, 2, 1024
NOTICE_BYTES = 512


@attrs.define(eq=False)
class ResponseRecord:
    """Output of one response. Only one task appends; the order of calls is time."""

    events: ResponseEvents
    # Output tokens so far, those without text included.
    token_count: int = attrs.field(default=0, init=False)
    size: int = attrs.field(default=0, init=False)  # characters in all deltas
    # Deltas so far: without tools one for each token; those without text are silent.
    delta_count: int = attrs.field(default=0, init=False)
    ending: Ending | None = attrs.field(default=None, init=False)
    inexact_from: int | None = attrs.field(default=None, init=False)  # of which token
    # In their order; only the last one may be open.
    items: list[Item] = attrs.field(factory=list, init=False)
    marks: list[Mark] = attrs.field(factory=list, init=False)

    # Number of the last event but for the deltas of tokens without tools.
    _last_number: int = attrs.field(default=1, init=False)
    # Only of answers that have calls or reasoning.
    _parser: AnswerParser | None = attrs.field(default=None, init=False)
    # Text of each delta. A pointer each, as nearly all are the vocabulary's own objects. For
    # reading the same list or, when ended, a tuple, which garbage collection leaves alone.
    _texts: list[str] = attrs.field(factory=list, init=False)
    _read: Sequence[str] = attrs.field(init=False)
    # Number of each delta, growing; None while that is 8 for each.
    _numbers: "array[int] | None" = attrs.field(default=None, init=False)
    _asked: AskedTokens = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        request, self._read = self.events.request, self._texts
        self._asked = AskedTokens(self.events)
        item = None
        if request.is_parsed:
            self._parser = request.tools.parser()
            self._numbers = array("I")
        elif request.generate:
            item = self.events.message(0, 0)
            self.items.append(item)
            self._last_number += item.opening_count
        self.marks.append(Mark(0, 0, self._last_number, item))

    @property
    def text(self) -> str:
        """The whole text so far, without reasoning and calls."""
        return "".join([self._text_of(item) for item in self.items if item.is_message])

    @property
    def reasoning(self) -> str:
        """The reasoning so far, if it is parted off."""
        return "".join([self._text_of(item) for item in self.items if item.is_reasoning])

    @property
    def calls(self) -> list[JsonObject]:
        """Calls so far, as items."""
        return [self._whole(item, {}) for item in self.items if item.origin is not None]

    @property
    def token_ids(self) -> list[int] | None:
        """Output tokens, or None when they are not kept."""
        return None if self._asked.ids is None else list(self._asked.ids)

    @property
    def extra_bytes(self) -> int:
        """About what it takes to keep it, beside the text: places of deltas, events, logprobs."""
        size = DELTA_BYTES * self.delta_count + NUMBER_BYTES * len(self._numbers or ())
        size += MARK_BYTES * len(self.marks[MARKS_ALWAYS:]) + ITEM_BYTES * len(self.items[1:])
        size += NOTICE_BYTES * sum(mark.notice is not None for mark in self.marks)
        return size + self._asked.size_bytes

    # ---- what is added

    def open_reasoning(self) -> None:
        """The prompt has opened the model's reasoning; before the first token."""
        if self._parser is not None and self._parser.reasoning is not None:
            self._parser.reasoning.is_open = True

    def append(self, output: GenerationOutput) -> None:
        """Add the next tokens, one by one. One without text is silent, unless ids are wanted."""
        assert self.ending is None
        token_ids = output.token_ids
        self._asked.append(output)
        if self._parser is not None:
            self._parse(self._parser, output.parts, len(token_ids))
            return
        # Each is a delta with the number 8 x tokens: the event before is at most three behind its.
        if output.texts is None and len(token_ids) == 1:  # nearly all
            self._texts.append(output.text)
        else:
            self._texts += output.texts or output.parts
        self.token_count += len(token_ids)
        self.delta_count = len(self._texts)
        self.size += len(output.text)
        if self.delta_count > self.token_count:  # the end completed a text
            self._number_the_rest()

    @property
    def numbers(self) -> Sequence[int]:
        """Number of each delta; those of silent ones are no event's."""
        if self._numbers is not None:
            return self._numbers
        step = NUMBERS_OF_TOKEN
        return range(step, step * self.delta_count + step, step)

    @property
    def last_number(self) -> int:
        """The number of the last event that there is."""
        if self._numbers is not None or self.ending is not None:
            return self._last_number
        last = self.delta_count
        while last and self.is_silent(last - 1):
            last -= 1
        return max(self._last_number, NUMBERS_OF_TOKEN * last)

    def is_silent(self, delta: int) -> bool:
        """Whether it is no event: a token without text, of which no more is asked."""
        return not (self._asked.are_shown or self.text_between(delta, delta + 1))

    def _number_the_rest(self) -> None:
        """The last delta, of no token, is behind that of the last token."""
        rest = self._texts.pop()
        self.delta_count, self.size = self.token_count, self.size - len(rest)
        self._last_number, self._numbers = self.last_number, array("I", self.numbers)
        self._add_delta(rest)

    def add_notice(self, event: Event) -> None:
        """Note what happened to the request, at this place among the deltas."""
        number = self.last_number
        notice = {**event, "sequence_number": number}
        self.marks.append(Mark(self.delta_count, number, number, notice=notice))

    def end(self, ending: Ending) -> None:
        """Nothing is added any more. A failure has the terminal event alone. Makes it small."""
        assert self.ending is None
        if self._parser is not None:
            for event in self._parser.finish():
                self._add_event(event)
            self._asked.reasoning, self._parser = self._parser.reasoning_tokens, None
        item = self._close_item(is_whole=ending.status is Status.COMPLETED)
        if item is not None and ending.status is not Status.FAILED:
            self._mark(item.closing_count + 1, item, is_end=True)
        else:
            self._mark(1, None, is_end=True)
        self.ending = ending
        self._read, self._texts = tuple(self._texts), []

    def _parse(self, parser: AnswerParser, texts: list[str], count: int) -> None:
        """Read calls out of the texts of `count` tokens, and of what the end completed."""
        for place, text in enumerate(texts):
            self.token_count += place < count
            for event in parser.push(text):
                self._add_event(event)
            # The text that may open a call is held back; its tokens need not be.
            left = self._asked.left(self.delta_count, self.token_count)
            if left and self._open_item is not None and self._open_item.origin is None:
                self._add_delta("")

    def _add_delta(self, text: str) -> None:
        """Add a delta that need not have the number of its token."""
        assert self._numbers is not None
        self._last_number = max(self._last_number + 1, NUMBERS_OF_TOKEN * self.token_count)
        self._numbers.append(self._last_number)
        self._texts.append(sys.intern(text))  # the parser cuts them
        self.delta_count += 1
        self.size += len(text)
        if self._asked.ends is not None:
            self._asked.ends.append(self.token_count)

    def _mark(self, count: int, item: Item | None, *, is_end: bool = False) -> None:
        """Add `count` events at once."""
        number = max(self.last_number + 1, NUMBERS_OF_TOKEN * self.token_count)
        self._last_number = number + count - 1
        self.marks.append(Mark(self.delta_count, number, self._last_number, item, is_end))

    # ---- items

    def _add_event(self, event: AnswerEvent) -> None:
        match event:
            case TextPiece(text=text) | ReasoningPiece(text=text):
                is_reasoning = isinstance(event, ReasoningPiece)
                if self._open_item is None or self._open_item.is_reasoning != is_reasoning:
                    self._end_item()
                    make = self.events.reasoning if is_reasoning else self.events.message
                    self._begin_item(make(len(self.items), self.delta_count))
                self._add_delta(text)
            case CallBegun(index=number, name=name):
                self._end_item()
                place = len(self.items), self.delta_count
                self._begin_item(self.events.call(*place, number=number, name=name))
            case ArgumentsPiece(text=text):
                if said := self.items[-1].said(text):
                    self._add_delta(said)
            case CallEnded():
                self._end_item()

    @property
    def _open_item(self) -> Item | None:
        return self.items[-1] if self.items and self.items[-1].stop is None else None

    def _begin_item(self, item: Item) -> None:
        self.items.append(item)
        self._mark(item.opening_count, item)

    def _end_item(self) -> None:
        item = self._close_item(is_whole=True)
        if item is not None:
            self._mark(item.closing_count, item, is_end=True)

    def _close_item(self, *, is_whole: bool) -> Item | None:
        """Close the open item, if there is one."""
        item = self._open_item
        if item is None:
            return None
        item.stop = self.delta_count
        item.status = "completed" if is_whole else "incomplete"
        return item

    def _text_of(self, item: Item) -> str:
        return self.text_between(item.first, self.delta_count if item.stop is None else item.stop)

    def _whole(self, item: Item, built: dict[int, JsonObject]) -> JsonObject:
        """An item's object, built once for all that share `built`."""
        if item.index not in built:
            logprobs: list[Entry] = []
            if self._asked.logprobs is not None:
                stop = self.delta_count if item.stop is None else item.stop
                logprobs = self._asked.entries(*map(self._tokens_before, (item.first, stop)))
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
        counts = self.token_count, self._asked.reasoning
        return self.events.final(ending, output, counts, self.inexact_from)

    def text_between(self, first: int, stop: int) -> str:
        """The text of the deltas `[first, stop)`."""
        return self._read[first] if stop - first == 1 else "".join(self._read[first:stop])

    def delta(self, first: int, stop: int) -> Delta | None:
        """Merge the deltas `[first, stop)`, all of one item; None if all are silent."""
        items, text = self.items, self.text_between(first, stop)
        if not (self._asked.are_shown or self._read[stop - 1]):
            while self.is_silent(stop - 1):
                stop -= 1
                if stop == first:
                    return None
        item = items[0]
        if len(items) > 1:
            item = items[bisect.bisect_right(items, first, key=lambda item: item.first) - 1]
        number = NUMBERS_OF_TOKEN * stop if self._numbers is None else self._numbers[stop - 1]
        delta = Delta(item, number, text)
        if self._asked.are_shown:
            self._asked.tell(delta, self._tokens_before(first), self._tokens_before(stop))
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
        begin = self.token_count - self._asked.left(self.delta_count, self.token_count)
        return {**terminal, **self._asked.last(begin, self.token_count)}

    def _tokens_before(self, delta: int) -> int:
        return self._asked.before(delta, self.token_count)
