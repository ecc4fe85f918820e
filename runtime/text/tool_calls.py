"""Tool calls as a model writes them: the grammar that forces one, and a parser of its output.

Sans-IO: text in, events out; however the text is cut, the events say the same. The format is that
of the Hermes and Qwen templates and of the bundled one, which is recognised by its template:

    words <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

White space around calls is dropped. What opens like a call and is none stays text.
"""

import enum
import json
import re
from collections.abc import Sequence
from typing import Any

import attrs

from .json_text import read_json

OPENING, CLOSING = "<tool_call>", "</tool_call>"
# As many as vLLM's clients send in one turn; each is a rule of the grammar.
CALLS_MAX = 8


@attrs.frozen
class Tool:
    """A function that a model may call; `parameters` is its JSON schema."""

    name: str
    parameters: dict[str, Any]
    description: str = ""
    strict: bool = False

    def for_template(self) -> dict[str, Any]:
        """As chat templates take it."""
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


def has_tool_calls(chat_template: str | None) -> bool:
    """Whether this template shows tools to the model, in the format read here."""
    return chat_template is not None and OPENING in chat_template and "tools" in chat_template


def forced_calls(tools: Sequence[Tool], *, calls_max: int) -> str:
    """The Lark grammar of one to `calls_max` calls and nothing else."""
    more = f' ("\\n" call){{0,{calls_max - 1}}}' if calls_max > 1 else ""
    return f"start: call{more}\n{_call_rules(tools)}"


def strict_calls(tools: Sequence[Tool]) -> str:
    """The Lark grammar of any text in which what opens a call goes on as one.

    The opening belongs to the text before: only there does a lazy match end with it.
    """
    return (
        "start: (text call)* tail\n"
        f"text[lazy]: /(.|\\n)*?{OPENING}/\n"
        "tail: /(.|\\n)*/\n"
        f"{_call_rules(tools, opening='')}"
    )


def _call_rules(tools: Sequence[Tool], opening: str = OPENING) -> str:
    names = " | ".join(f"call_{place}" for place in range(len(tools)))
    lines = [f'call: {json.dumps(opening)} "\\n" ({names}) "\\n{CLOSING}"']
    for place, tool in enumerate(tools):
        head = json.dumps(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        lines.append(f'call_{place}: {head} arguments_{place} "}}"')
        lines.append(f"arguments_{place}: %json {json.dumps(tool.parameters)}")
    return "\n".join(lines)


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


ToolEvent = TextPiece | CallBegun | ArgumentsPiece | CallEnded


class _State(enum.Enum):
    TEXT = "text"  # outside of calls
    HEAD = "head"  # behind an opening, before the arguments
    ARGUMENTS = "arguments"  # inside of the arguments' object
    TAIL = "tail"  # behind the arguments, before the closing


# Up to where the arguments' object begins.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
_SPACE = " \t\r\n"


@attrs.define(eq=False)
class ToolCallParser:
    """Of one answer. What it holds back is bounded by the length of the answer.

    Calls beyond `calls_max`, which the model was not to make, are not said.
    """

    calls_max: int | None = None
    # Calls so far.
    count: int = attrs.field(default=0, init=False)
    _state: _State = attrs.field(default=_State.TEXT, init=False)
    # What has come and is not said yet.
    _held: str = attrs.field(default="", init=False)
    # Inside of the arguments: open brackets, and whether a string is open or a character escaped.
    _depth: int = attrs.field(default=0, init=False)
    _in_string: bool = attrs.field(default=False, init=False)
    _escaped: bool = attrs.field(default=False, init=False)

    def push(self, text: str) -> list[ToolEvent]:
        """The next piece of the answer."""
        self._held += text
        events: list[ToolEvent] = []
        while self._advance(events):
            pass
        if self.calls_max is None or self.count <= self.calls_max:
            return events
        return [
            event
            for event in events
            if isinstance(event, TextPiece) or event.index < self.calls_max
        ]

    def finish(self) -> list[ToolEvent]:
        """The answer has ended; a call that was cut is not ended."""
        held, self._held = self._held, ""
        match self._state:
            case _State.TEXT if held.strip(_SPACE) or not self.count:
                return [TextPiece(held)] if held else []
            case _State.HEAD:
                return [TextPiece(OPENING + held)]
            case _:
                return []

    def _advance(self, events: list[ToolEvent]) -> bool:
        """Go on by one state if what is held allows it."""
        match self._state:
            case _State.TEXT:
                return self._take_text(events)
            case _State.HEAD:
                return self._take_head(events)
            case _State.ARGUMENTS:
                return self._take_arguments(events)
            case _State.TAIL:
                _, closing, rest = self._held.partition(CLOSING)
                if closing:
                    self._held, self._state = rest, _State.TEXT
                return bool(closing)

    def _take_text(self, events: list[ToolEvent]) -> bool:
        before, opening, rest = self._held.partition(OPENING)
        if opening:
            self._held, self._state = rest, _State.HEAD
            said = before.rstrip(_SPACE)
        else:
            # Of what may yet become white space before a call, or an opening, nothing is said.
            said = _without_start_of(OPENING, self._held).rstrip(_SPACE)
            self._held = self._held[len(said) :]
        if said:
            events.append(TextPiece(said))
        return bool(opening)

    def _take_head(self, events: list[ToolEvent]) -> bool:
        head = _HEAD.match(self._held)
        if head is not None and (name := _string(head[1])) is not None:
            events.append(CallBegun(self.count, name))
            self.count += 1
            self._held, self._state = self._held[head.end() :], _State.ARGUMENTS
            return True
        body, closing, rest = self._held.partition(CLOSING)
        if not closing:
            return False
        events += self._whole_call(body)
        self._held, self._state = rest, _State.TEXT
        return True

    def _whole_call(self, body: str) -> list[ToolEvent]:
        """A call that is written otherwise, or text."""
        try:
            call = read_json(body)
        except ValueError:
            call = None
        name = call.get("name") if isinstance(call, dict) else None
        arguments = call.get("arguments", {}) if isinstance(call, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return [TextPiece(OPENING + body + CLOSING)]
        index, self.count = self.count, self.count + 1
        text = json.dumps(arguments, ensure_ascii=False)
        return [CallBegun(index, name), ArgumentsPiece(index, text), CallEnded(index)]

    def _take_arguments(self, events: list[ToolEvent]) -> bool:
        index = self.count - 1
        end = self._find_end(self._held)
        said = self._held[:end]
        self._held = self._held[len(said) :]
        if said:
            events.append(ArgumentsPiece(index, said))
        if end is None:
            return False
        events.append(CallEnded(index))
        self._state = _State.TAIL
        return True

    def _find_end(self, text: str) -> int | None:
        """Where the object ends in the new text; None if it goes on."""
        for place, character in enumerate(text, 1):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place
        return None


def _without_start_of(tag: str, text: str) -> str:
    """The text without an end that the tag may begin with."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length]
    return text


def _string(quoted: str) -> str | None:
    try:
        value = read_json(quoted)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
