"""Format in which a model answers: its reasoning, its tool calls, and the text that is the answer.

Sans-IO: a chat template and the tokenizer's added tokens in; parsers and grammars out. One object
for a model, found once. A parser is a function of the tokens' text, so that a stream is parted in
the same way for each reader, and each life of a frontend.
"""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Self

import attrs

from ...engine.grammar.text import lark_text
from ...engine.structured_outputs import StructuredOutputs
from ..config import REASONING_AUTO, REASONING_HARMONY
from . import harmony
from .reasoning import REASONING_MARKS, ReasoningMarks, ReasoningParser
from .tool_calls import AnswerEvent, CallParser, TextPiece, Tool
from .tool_formats import (
    HARMONY_FORMAT,
    ToolFormat,
    analysis_rules,
    quoted,
    text_until,
    tool_format_names,
    tool_format_of,
)

# Tokens at a prompt's end, where a template may have opened the reasoning: a mark of twenty
# characters may be as many tokens.
PROMPT_END_TOKENS = 32
# White space between reasoning and a form that the answer must have.
_SPACE_RULE = r"space: /[ \n]{1,4}/"


@attrs.define(eq=False)
class AnswerParser:
    """Reads one answer: its reasoning first, then calls and text.

    Calls beyond `calls_max`, which the model was not to make, are not said. `is_open`: the prompt
    has opened the reasoning.
    """

    reasoning: ReasoningParser | None
    calls: CallParser | None
    calls_max: int | None = None
    # The answer is calls alone.
    is_forced: bool = False
    # Tokens of the reasoning, its marks included, if each `push` is one token.
    reasoning_tokens: int = attrs.field(default=0, init=False)
    _may_reason: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        is_harmony = isinstance(self.calls, harmony.HarmonyParser)
        self._may_reason = self.reasoning is not None or is_harmony

    @property
    def count(self) -> int:
        """Calls so far."""
        return 0 if self.calls is None else self.calls.count

    def push(self, text: str) -> list[AnswerEvent]:
        """The next piece of the answer."""
        if not self._may_reason:
            if self.calls is None:
                return [TextPiece(text)] if text else []
            return self._allowed(self.calls.push(text))
        was_reasoning = self.is_reasoning
        events: list[AnswerEvent] = []
        if self.reasoning is None:
            self._take(text, events)
        else:
            for event in self.reasoning.push(text):
                if isinstance(event, TextPiece):
                    self._take(event.text, events)
                else:
                    events.append(event)
            self._may_reason = not self.reasoning.is_over
        self.reasoning_tokens += was_reasoning or self.is_reasoning
        return self._allowed(events)

    def finish(self) -> list[AnswerEvent]:
        """The answer has ended; a call that was cut is not ended."""
        events: list[AnswerEvent] = []
        for event in () if self.reasoning is None else self.reasoning.finish():
            if isinstance(event, TextPiece):
                self._take(event.text, events)
            else:
                events.append(event)
        if self.calls is not None:
            events += self.calls.finish()
        return self._allowed(events)

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        if self.reasoning is not None:
            return self.reasoning.is_reasoning
        return isinstance(self.calls, harmony.HarmonyParser) and self.calls.is_reasoning

    def _take(self, text: str, events: list[AnswerEvent]) -> None:
        if self.calls is not None:
            events += self.calls.push(text)
        elif text:
            events.append(TextPiece(text))

    def _allowed(self, events: list[AnswerEvent]) -> list[AnswerEvent]:
        if self.is_forced:  # a text is the beginning of a call that was cut
            events = [event for event in events if not isinstance(event, TextPiece)]
        most = self.calls_max
        if most is None or self.count <= most:
            return events
        return [event for event in events if getattr(event, "index", 0) < most]


@attrs.frozen(eq=False)
class AnswerFormat:
    """Format of a model's answers; by default they are text alone."""

    # How its reasoning is marked, if it is parted off; and how it writes calls.
    reasoning: ReasoningMarks | None = None
    tools: ToolFormat | None = None
    # Every answer is messages in channels.
    is_harmony: bool = False
    # Why no tools are served, without a format.
    no_tools_reason: str = "this model has no chat template"
    # Marks that are tokens which no text of a grammar matches: {text: id}.
    mark_ids: Mapping[str, int] = attrs.field(factory=dict)
    # Marks may be special tokens, whose text is usually skipped.
    has_special_marks: bool = False
    # The template looks at these variables.
    variables: frozenset[str] = frozenset()

    @classmethod
    def of(cls, info: Mapping[str, Any], reasoning_parser: str = REASONING_AUTO) -> Self:
        """Format of the model whose `tokenizer_info` this is."""
        template = info.get("chat_template")
        source: str = template if isinstance(template, str) else ""
        added: Mapping[str, Any] = info.get("added_tokens_decoder", {})
        tokens = {each["content"]: int(i) for i, each in added.items()}
        specials = {each["content"] for each in added.values() if each["special"]}
        tools = tool_format_of(source)
        is_harmony = tools is HARMONY_FORMAT and reasoning_parser in (
            REASONING_AUTO,
            REASONING_HARMONY,
        )
        if tools is HARMONY_FORMAT and not is_harmony:
            tools = None
        reasoning = None if is_harmony else _reasoning_of(reasoning_parser, source, tokens.keys())
        marks = [] if reasoning is None else [reasoning.opening, reasoning.closing]
        marks += () if tools is None else tools.marks
        reason = "the chat template of this model shows no tools"
        if "tools" in source:
            reason = (
                "the chat template of this model has calls in a format that is not supported; "
                f"supported are those of {tool_format_names()}"
            )
        return cls(
            reasoning=reasoning,
            tools=tools,
            is_harmony=is_harmony,
            no_tools_reason=reason if source else "this model has no chat template",
            mark_ids={m: tokens[m] for m in marks if m in specials or (m in tokens and _is_tag(m))},
            has_special_marks=not specials.isdisjoint(marks),
            variables=frozenset(re.findall(r"\b(?:enable_thinking|thinking)\b", source)),
        )

    @property
    def parts_reasoning(self) -> bool:
        """Whether its answers may have reasoning that is parted off."""
        return self.reasoning is not None or self.is_harmony

    def is_opened(
        self, prompt_token_ids: Sequence[int], token_bytes: Callable[[Sequence[int]], list[bytes]]
    ) -> bool:
        """Whether the answer to a prompt begins inside of its reasoning."""
        if self.reasoning is None:
            return False
        end = token_bytes(prompt_token_ids[-PROMPT_END_TOKENS:])
        return self.reasoning.is_opened_by(b"".join(end).decode(errors="replace"))

    def parser(
        self,
        tools: Sequence[Tool],
        calls_max: int | None,
        *,
        is_open: bool,
        is_forced: bool = False,
    ) -> AnswerParser | None:
        """Parser of an answer that may call these tools; None where there is nothing to part."""
        calls = None
        if self.tools is not None and (tools or self.is_harmony):
            calls = self.tools.parser(tools)
        if self.reasoning is None and calls is None:
            return None
        reasoning = None if self.reasoning is None else ReasoningParser(self.reasoning, is_open)
        return AnswerParser(reasoning, calls, calls_max, is_forced)

    # ---- grammars

    def mark(self, text: str) -> str:
        """The term of a mark in a grammar."""
        token_id = self.mark_ids.get(text)
        return quoted(text) if token_id is None else f"<[{token_id}]>"

    def forced(self, tools: Sequence[Tool], *, calls_max: int) -> str:
        """The Lark grammar of calls and nothing else."""
        assert self.tools is not None
        return self.tools.forced(tools, calls_max=calls_max, mark=self.mark)

    def strict(self, tools: Sequence[Tool]) -> str:
        """The Lark grammar of text whose calls match their schemas."""
        assert self.tools is not None
        return self.tools.strict(tools, mark=self.mark)

    def behind_reasoning(
        self, form: StructuredOutputs, *, is_open: bool, is_call: bool = False
    ) -> StructuredOutputs:
        """The form of a whole answer whose text, or calls, have this one.

        Raises `InvalidParameter`.
        """
        if not self.parts_reasoning or (self.is_harmony and is_call):
            return form
        answer = f"answer: %lark {{\n{lark_text(form)}\n}}"
        if self.is_harmony:
            final = f'{self.mark(harmony.CHANNEL)} "final" {self.mark(harmony.MESSAGE)}'
            rules = analysis_rules(self.mark)
            return StructuredOutputs.grammar(f"start: analysis? {final} answer\n{rules}\n{answer}")
        assert self.reasoning is not None
        rules = text_until("reasoning", self.reasoning.closing, self.mark)
        before = f"{self.mark(self.reasoning.opening)} reasoning space?"
        start = "reasoning space?" if is_open else f"({before})?"
        text = f"start: {start} answer\n{rules}\n{_SPACE_RULE}\n{answer}"
        return StructuredOutputs.grammar(text)


TEXT_ALONE = AnswerFormat()


def _is_tag(text: str) -> bool:
    """Whether llguidance takes an added token for a special one by its looks."""
    return text.startswith("<") and text.endswith(">")


def _reasoning_of(parser: str, template: str, tokens: Set[str]) -> ReasoningMarks | None:
    """The marks of a name, or those that the template or the tokenizer has."""
    if parser != REASONING_AUTO:
        return REASONING_MARKS.get(parser)
    for marks in REASONING_MARKS.values():
        if marks.closing in template or {marks.opening, marks.closing} <= tokens:
            return marks
    return None
