"""Reasoning of a model, parted off from its answer by marks such as `<think>` and `</think>`.

Sans-IO: text in, events out; however the text is cut, the events say the same. Reasoning stands at
the beginning of an answer, and only there; some chat templates open it already, at the end of the
prompt. White space around it is dropped.
"""

import enum

import attrs

from .tool_calls import ReasoningPiece, TextPiece, without_start_of

_SPACE = " \t\r\n"


@attrs.frozen
class ReasoningMarks:
    """Marks around the reasoning of a model."""

    opening: str
    closing: str

    def is_opened_by(self, prompt_end: str) -> bool:
        """Whether an answer to a prompt that ends so begins inside of its reasoning."""
        return prompt_end.rstrip(_SPACE).endswith(self.opening)


# By the names that `--reasoning-parser` takes.
REASONING_MARKS = {
    "think": ReasoningMarks("<think>", "</think>"),  # Qwen, DeepSeek, GLM, Kimi, MiniMax, Nemotron
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),  # Magistral
    "seed": ReasoningMarks("<seed:think>", "</seed:think>"),  # Seed-OSS
    "cohere": ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
}


class _ReasoningState(enum.Enum):
    START = "start"  # only white space so far, or the beginning of a mark
    INSIDE = "inside"  # of the reasoning
    BEHIND = "behind"  # it, and only white space since
    ANSWER = "answer"  # nothing is reasoning any more


@attrs.define(eq=False)
class ReasoningParser:
    """Parser of an answer. `is_open`: the prompt has opened the reasoning."""

    marks: ReasoningMarks
    is_open: bool = False
    _state: _ReasoningState = attrs.field(default=_ReasoningState.START, init=False)
    # Text that has come and is not said yet; whether some reasoning was said.
    _held: str = attrs.field(default="", init=False)
    _has_said: bool = attrs.field(default=False, init=False)

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._state is _ReasoningState.INSIDE or (
            self.is_open and self._state is _ReasoningState.START
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing is reasoning any more, and nothing is held back."""
        return self._state is _ReasoningState.ANSWER

    def push(self, text: str) -> list[ReasoningPiece | TextPiece]:
        """The next piece of the answer."""
        if self._state is _ReasoningState.ANSWER:
            return [TextPiece(text)] if text else []
        is_plain = self.marks.closing[0] not in text and not text[-1:].isspace()
        if is_plain and text and self._has_said and not self._held and self.is_reasoning:
            return [ReasoningPiece(text)]  # nearly all
        self._held += text
        events: list[ReasoningPiece | TextPiece] = []
        if self._state is _ReasoningState.START:
            self._take_start()
        if self._state is _ReasoningState.INSIDE:
            self._take_inside(events)
        if self._state is _ReasoningState.BEHIND:
            self._held = self._held.lstrip(_SPACE)
            if self._held:
                self._state = _ReasoningState.ANSWER
        if self._state is _ReasoningState.ANSWER and self._held:
            events.append(TextPiece(self._held))
            self._held = ""
        return events

    def finish(self) -> list[ReasoningPiece | TextPiece]:
        """The answer has ended; its reasoning may have been cut."""
        held, self._held = self._held, ""
        if self.is_reasoning:
            held = held.rstrip(_SPACE) if self._has_said else held.strip(_SPACE)
            return [ReasoningPiece(held)] if held else []
        return [TextPiece(held)] if held else []

    def _take_start(self) -> None:
        begin, opening = self._held.lstrip(_SPACE), self.marks.opening
        if begin.startswith(opening):  # models repeat it where the prompt has it
            self._held, self._state = begin[len(opening) :], _ReasoningState.INSIDE
        elif not opening.startswith(begin):
            self._state = _ReasoningState.INSIDE if self.is_open else _ReasoningState.ANSWER

    def _take_inside(self, events: list[ReasoningPiece | TextPiece]) -> None:
        if not self._has_said:
            self._held = self._held.lstrip(_SPACE)
        said, closing, rest = self._held.partition(self.marks.closing)
        if closing:
            said, self._held, self._state = said.rstrip(_SPACE), rest, _ReasoningState.BEHIND
        else:
            # Hold back what may become white space before the closing, or the closing itself.
            said = without_start_of(self.marks.closing, self._held).rstrip(_SPACE)
            self._held = self._held[len(said) :]
        if said:
            events.append(ReasoningPiece(said))
            self._has_said = True
