"""Tool calls as a model writes them: events, and a parser of calls whose arguments are JSON.

Sans-IO: text in, events out; however the text is cut, the events say the same. Most formats put a
name and a JSON object behind an opening, as Hermes and Qwen do:

    words <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

`JsonCalls` says what differs between them; which one a model writes is found in its chat template
(`tool_formats`). White space around calls is dropped. What opens like a call and is none stays
text; a call that the answer's end cuts before its arguments is dropped.
"""

import enum
import json
import re
from typing import Any, Protocol

import attrs

from .call_arguments import ArgumentsScanner
from .json_text import read_json

# The most that vLLM's clients send in one turn; each is a rule of the grammar.
CALLS_MAX = 8
# Characters before the arguments, where no closing says that a call is none: a name has 64.
HEAD_CHARACTERS_MAX = 256


@attrs.frozen
class Tool:
    """A function that a model may call; `parameters` is its JSON schema."""

    name: str
    parameters: dict[str, Any]
    description: str = ""
    strict: bool = False

    def for_template(self) -> dict[str, Any]:
        """Tool for chat templates."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


class ToolChoice(enum.StrEnum):
    """Whether a call must come. A named one is `REQUIRED` with one tool alone."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@attrs.frozen
class ReasoningPiece:
    """More of the model's reasoning, which is not part of the answer."""

    text: str


@attrs.frozen
class TextPiece:
    """Text outside of calls."""

    text: str


@attrs.frozen
class CallBegun:
    """Call number `index` is to this function."""

    index: int
    name: str


@attrs.frozen
class ArgumentsPiece:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@attrs.frozen
class CallEnded:
    """The arguments of this call are complete."""

    index: int


AnswerEvent = ReasoningPiece | TextPiece | CallBegun | ArgumentsPiece | CallEnded


class CallParser(Protocol):
    """Reads the calls of one answer. What it holds back is bounded by the length of the answer."""

    # Calls so far.
    count: int

    def push(self, text: str) -> list[AnswerEvent]:
        """The next piece of the answer."""

    def finish(self) -> list[AnswerEvent]:
        """The answer has ended; a call that was cut is not ended."""


@attrs.frozen
class JsonCalls:
    """A format whose calls have their arguments as a JSON object."""

    # Marks of a call, or several. Without a closing, `tail` ends it.
    opening: str
    closing: str
    # Text between the opening and the arguments' object. The group is the name, in JSON if it is
    # quoted.
    head: re.Pattern[str]
    # Text between the arguments and the end of the call.
    tail: re.Pattern[str]
    # Text after a call: another one follows without an opening, or the last one has ended.
    separator: str = ""
    terminator: str = ""
    # An object that the answer begins with may be a call without its opening.
    is_bare: bool = False
    # Beginning of a call that is cut there, behind the opening.
    begun: re.Pattern[str] = re.compile(r"[\s\[]*(?:\{|$)")


class _CallState(enum.Enum):
    START = "start"  # only white space so far
    TEXT = "text"  # outside of calls
    HEAD = "head"  # behind an opening, before the arguments
    ARGUMENTS = "arguments"  # inside of the arguments' object
    TAIL = "tail"  # behind the arguments, before the end of the call
    AFTER = "after"  # behind a call, where a separator may stand


_SPACE = " \t\r\n"


@attrs.define(eq=False)
class HeldCallParser:
    """Common part of parsers by states: see `CallParser`."""

    count: int = attrs.field(default=0, init=False)
    # Text that has come and is not said yet; the opening of the call whose head is held.
    _held: str = attrs.field(default="", init=False)
    _opened_by: str = attrs.field(default="", init=False)

    def push(self, text: str) -> list[AnswerEvent]:
        self._held += text
        events: list[AnswerEvent] = []
        while self._advance(events):
            pass
        return events

    def _advance(self, events: list[AnswerEvent]) -> bool:
        """Go on by one state if what is held allows it."""
        raise NotImplementedError


@attrs.define(eq=False)
class JsonCallParser(HeldCallParser):
    """Parser of calls in JSON: see `CallParser`."""

    calls: JsonCalls
    _state: _CallState = attrs.field(default=_CallState.TEXT, init=False)
    # Scanner of the open call's arguments.
    _scanner: ArgumentsScanner = attrs.field(factory=ArgumentsScanner, init=False)

    def __attrs_post_init__(self) -> None:
        if self.calls.is_bare:
            self._state = _CallState.START

    def finish(self) -> list[AnswerEvent]:
        held, self._held = self._held, ""
        match self._state:
            case _CallState.HEAD:
                return self._whole_call(held, closing="")
            case _CallState.START | _CallState.TEXT if held.strip(_SPACE) or not self.count:
                return last_text(held, self.calls.opening)
            case _:
                return []

    def _advance(self, events: list[AnswerEvent]) -> bool:
        match self._state:
            case _CallState.START:
                return self._take_start()
            case _CallState.TEXT:
                return self._take_text(events)
            case _CallState.HEAD:
                return self._take_head(events)
            case _CallState.ARGUMENTS:
                return self._take_arguments(events)
            case _CallState.TAIL:
                tail = self.calls.tail.match(self._held)
                if tail is not None:
                    self._held = self._held[tail.end() :]
                    self._state = _CallState.AFTER if self.calls.separator else _CallState.TEXT
                return tail is not None
            case _CallState.AFTER:
                return self._take_after()

    def _take_start(self) -> bool:
        begin = self._held.lstrip(_SPACE)
        if begin.startswith("{"):
            self._open("", begin)
        elif begin:
            self._state = _CallState.TEXT
        return bool(begin)

    def _take_text(self, events: list[AnswerEvent]) -> bool:
        before, opening, rest = self._held.partition(self.calls.opening)
        if opening:
            self._open(opening, rest)
            said = before.rstrip(_SPACE)
        else:
            # Hold back what may yet become white space before a call, or an opening.
            said = without_start_of(self.calls.opening, self._held).rstrip(_SPACE)
            self._held = self._held[len(said) :]
        if said:
            events.append(TextPiece(said))
        return bool(opening)

    def _open(self, opening: str, rest: str) -> None:
        self._opened_by, self._held, self._state = opening, rest, _CallState.HEAD

    def _take_after(self) -> bool:
        rest = self._held.lstrip(_SPACE)
        if not rest:
            return False
        if rest.startswith(self.calls.separator):
            self._open(self.calls.separator, rest[len(self.calls.separator) :])
        else:
            self._held, self._state = rest.removeprefix(self.calls.terminator), _CallState.TEXT
        return True

    def _take_head(self, events: list[AnswerEvent]) -> bool:
        head, closing = self.calls.head.match(self._held), self.calls.closing
        is_near = closing or (head is not None and head.end() <= HEAD_CHARACTERS_MAX)
        if head is not None and is_near and (name := _name_of(head[1])) is not None:
            events.append(CallBegun(self.count, name))
            self.count += 1
            self._held, self._state = self._held[head.end() :], _CallState.ARGUMENTS
            self._scanner = ArgumentsScanner(closing)
            return True
        if closing:
            body, found, rest = self._held.partition(closing)
            if found:
                self._held, self._state = rest, _CallState.TEXT
                events += self._whole_call(body, found)
            return bool(found)
        if len(self._held) <= HEAD_CHARACTERS_MAX:
            return False
        if self._opened_by:
            events.append(TextPiece(self._opened_by))
        self._state = _CallState.TEXT
        return True

    def _whole_call(self, body: str, closing: str) -> list[AnswerEvent]:
        """A call that is written otherwise, or text."""
        text: list[AnswerEvent] = [TextPiece(self._opened_by + body + closing)]
        try:
            call = read_json(body.strip(f"{_SPACE}[]"))
        except ValueError:
            is_cut = self._opened_by and not closing and self.calls.begun.match(body)
            return [] if is_cut else text
        if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
            return text
        given = [call[each] for each in ("arguments", "parameters") if each in call]
        arguments = given[0] if given else {}
        if not isinstance(arguments, dict):
            return text
        index, self.count = self.count, self.count + 1
        written = json.dumps(arguments, ensure_ascii=False)
        return [CallBegun(index, name), ArgumentsPiece(index, written), CallEnded(index)]

    def _take_arguments(self, events: list[AnswerEvent]) -> bool:
        index = self.count - 1
        said, end = self._scanner.push(self._held)
        self._held = "" if end is None else self._held[end:]
        if said:
            events.append(ArgumentsPiece(index, said))
        if end is None:
            return False
        events.append(CallEnded(index))
        self._state = _CallState.TAIL
        return True


def without_start_of(tag: str, text: str) -> str:
    """The text without an end that the tag may begin with."""
    if tag[0] not in text[1 - len(tag) :]:  # nearly always
        return text
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length]
    return text


def last_text(held: str, *tags: str) -> list[AnswerEvent]:
    """Text held at the end, but for most of a tag: a call was cut in it."""
    for tag in tags:
        said = without_start_of(tag, held)
        if len(held) - len(said) > len(tag) // 2:
            held = said.rstrip(_SPACE)
    return [TextPiece(held)] if held else []


def _name_of(written: str) -> str | None:
    if not written.startswith('"'):
        return written
    try:
        value = read_json(written)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
