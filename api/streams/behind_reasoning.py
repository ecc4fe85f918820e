"""Form of an answer whose model reasons first: it begins where the reasoning ends.

Whether the prompt has opened the reasoning decides the grammar, so the prompt is made into tokens
before its request is sent. Nothing is done for requests without a form, nor for other models.
"""

from collections.abc import Sequence

import attrs

from ...engine.sampling_params import SamplingParams
from ...runtime.frontend.generation import Generator
from ...runtime.text.prompts import ChatPrompt, Prompt
from ..openai.tool_use import ToolUse


async def with_form_behind(
    generator: Generator,
    prompt: Prompt,
    sampling: SamplingParams,
    tools: ToolUse,
    *,
    is_call: bool,
    principal: str = "",
) -> tuple[Prompt, SamplingParams]:
    """What is asked of the runtime; `is_call`: calls have the form, and not the text.

    Raises as `Generator.tokenize`, and `InvalidParameter` for a form that is too large.
    """
    form, answers = sampling.structured_outputs, tools.answer_format
    if form is None or not answers.parts_reasoning:
        return prompt, sampling
    if isinstance(prompt, ChatPrompt):
        prompt = await generator.tokenize(prompt, add_special_tokens=False, principal=principal)
    assert isinstance(prompt, Sequence)
    assert not isinstance(prompt, str), "an assistant is asked in messages or token ids"
    is_open = answers.is_opened(prompt, generator.token_bytes)
    form = answers.behind_reasoning(form, is_open=is_open, is_call=is_call)
    return prompt, attrs.evolve(sampling, structured_outputs=form)
