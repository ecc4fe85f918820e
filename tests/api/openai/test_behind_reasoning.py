"""A form of an answer begins where the reasoning of its model ends."""

import attrs
import pytest

from triolet.api.openai.tool_use import with_form_behind
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import GrammarKind, StructuredOutputs
from triolet.runtime.text.prompts import ChatPrompt

from ..answers import CALLS, THINKING, TOOLS
from ..fakes import FakeGenerator

FORM = StructuredOutputs.choice(["yes", "no"])


@pytest.mark.parametrize(("end", "is_open"), [("hi", False), ("hi<think>\n", True)])
async def test_a_form_begins_where_the_prompt_says(end: str, is_open: bool) -> None:
    prompt = ChatPrompt([{"role": "user", "content": end}])
    tools = attrs.evolve(TOOLS, answer_format=THINKING)
    sampling = SamplingParams(structured_outputs=FORM)
    asked = await with_form_behind(FakeGenerator(), prompt, sampling, tools, is_call=False)
    assert asked[0] == [*map(ord, end)]
    form = asked[1].structured_outputs
    assert form is not None
    assert form.kind is GrammarKind.GRAMMAR
    assert form.text.startswith("start: reasoning") == is_open


async def test_nothing_is_done_without_a_form_or_without_reasoning() -> None:
    prompt, plain = ChatPrompt([]), SamplingParams()
    thinking = attrs.evolve(TOOLS, answer_format=THINKING)
    asked = await with_form_behind(FakeGenerator(), prompt, plain, thinking, is_call=False)
    assert asked == (prompt, plain)
    formed = SamplingParams(structured_outputs=FORM)
    assert TOOLS.answer_format is CALLS
    asked = await with_form_behind(FakeGenerator(), prompt, formed, TOOLS, is_call=False)
    assert asked == (prompt, formed)
