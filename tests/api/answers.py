"""Formats of answers for tests: calls as Hermes models write them, with reasoning and without."""

from triolet.api.openai.tool_use import ToolUse
from triolet.runtime.text.answer_format import AnswerFormat
from triolet.runtime.text.reasoning import REASONING_MARKS
from triolet.runtime.text.tool_calls import Tool
from triolet.runtime.text.tool_formats import HERMES_FORMAT

CALLS = AnswerFormat(tools=HERMES_FORMAT)
THINKING = AnswerFormat(reasoning=REASONING_MARKS["think"])
THINKING_CALLS = AnswerFormat(reasoning=REASONING_MARKS["think"], tools=HERMES_FORMAT)
# One function that any arguments are given to.
TOOLS = ToolUse(tools=(Tool("f", {"type": "object"}),), answer_format=CALLS)
