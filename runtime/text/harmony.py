"""Answers in the format of gpt-oss ("harmony"): messages in channels, some of them calls.

    <|channel|>analysis<|message|>The user wants …<|end|><|start|>assistant<|channel|>commentary
    to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

Sans-IO: text in, events out; however the text is cut, the events say the same. The channel
`analysis` is reasoning; a message with a recipient is a call; all others are the answer.
"""

import enum
import re

import attrs

from .call_arguments import ArgumentsScanner
from .tool_calls import (
    AnswerEvent,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ReasoningPiece,
    TextPiece,
    without_start_of,
)

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
MARKS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)
# Marks that end a message; a header follows.
_ENDS = (END, CALL, RETURN)
_END = re.compile("|".join(map(re.escape, _ENDS)))
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
# How a header may begin; anything else is text without one.
_BEGINNINGS = (START, CHANNEL, MESSAGE, "to=")
HEADER_CHARACTERS_MAX = 256
_SPACE = " \t\r\n"


class _Kind(enum.Enum):
    HEADER = "header"
    REASONING = "reasoning"
    CALL = "call"
    TEXT = "text"


@attrs.define(eq=False)
class HarmonyParser:
    """Parser of an answer. Without `calls` a message to a function is text: no tool was offered."""

    calls: bool = True
    count: int = attrs.field(default=0, init=False)
    _kind: _Kind = attrs.field(default=_Kind.HEADER, init=False)
    # Text that has come and is not said yet.
    _held: str = attrs.field(default="", init=False)
    # Scanner of the open call's arguments.
    _scanner: ArgumentsScanner = attrs.field(factory=ArgumentsScanner, init=False)

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._kind is _Kind.REASONING

    def push(self, text: str) -> list[AnswerEvent]:
        """The next piece of the answer."""
        events: list[AnswerEvent] = []
        if not self._held and self._kind is not _Kind.HEADER and END[0] not in text:
            self._say(text, events)  # nearly all
            return events
        self._held += text
        while self._take_header(events) if self._kind is _Kind.HEADER else self._take_body(events):
            pass
        return events

    def finish(self) -> list[AnswerEvent]:
        """The answer has ended; a call that was cut is not ended."""
        events: list[AnswerEvent] = []
        held, self._held = self._held, ""
        if self._kind is not _Kind.HEADER:
            self._say(held, events)
        return events

    def _take_header(self, events: list[AnswerEvent]) -> bool:
        begin = self._held.lstrip(_SPACE)
        is_one = any(begin.startswith(each) or each.startswith(begin) for each in _BEGINNINGS)
        header, message, rest = begin.partition(MESSAGE)
        if is_one and message and len(header) <= HEADER_CHARACTERS_MAX:
            channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
            self._held = rest
            if recipient is not None and self.calls:
                self._kind, self._scanner = _Kind.CALL, ArgumentsScanner()
                events.append(CallBegun(self.count, recipient[1]))
                self.count += 1
            elif channel is not None and channel[1] == "analysis":
                self._kind = _Kind.REASONING
            else:
                self._kind = _Kind.TEXT
            return True
        if is_one and len(begin) < HEADER_CHARACTERS_MAX + len(MESSAGE):
            return False
        self._kind = _Kind.TEXT
        return True

    def _take_body(self, events: list[AnswerEvent]) -> bool:
        end = _END.search(self._held)
        if end is None:
            said = min((without_start_of(mark, self._held) for mark in _ENDS), key=len)
            self._held = self._held[len(said) :]
        else:
            said, self._held = self._held[: end.start()], self._held[end.end() :]
        self._say(said, events)
        if end is None:
            return False
        if self._kind is _Kind.CALL:
            events.append(CallEnded(self.count - 1))
        self._kind = _Kind.HEADER
        return True

    def _say(self, text: str, events: list[AnswerEvent]) -> None:
        match self._kind:
            case _ if not text:
                return
            case _Kind.REASONING:
                events.append(ReasoningPiece(text))
            case _Kind.CALL:
                said, end = self._scanner.push(text)
                events.append(
                    ArgumentsPiece(self.count - 1, said + text[len(text) if end is None else end :])
                )
            case _:
                events.append(TextPiece(text))
