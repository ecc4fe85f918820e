"""Asks a runtime for one answer of a form, and says whether it has it."""

import attrs

from triolet.engine.errors import EngineError
from triolet.engine.messages import FinishReason
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.frontend.generation import Generator
from triolet.tests.structured.forms import Form

PROMPT = "Tell me something about a dog, please. Answer:"
# The bundled model's length allows no more.
TOKENS_MAX = 900


@attrs.frozen
class Verdict:
    """One answer; `problem` is empty if it is valid."""

    name: str
    text: str
    tokens: int
    problem: str = ""

    @property
    def is_valid(self) -> bool:
        return not self.problem


async def ask(runtime: Generator, form: Form, seed: int) -> Verdict:
    """One answer at temperature 1."""
    params = SamplingParams(
        temperature=1.0,
        top_p=1.0,
        seed=seed,
        max_tokens=TOKENS_MAX,
        structured_outputs=form.wanted,
    )
    try:
        async with runtime.generate(PROMPT, params) as stream:
            await stream.collect()
    except EngineError as error:
        return Verdict(form.name, "", 0, f"refused: {error}")
    problem = ""
    if stream.finish_reason is not FinishReason.STOP:
        problem = f"ended by {stream.finish_reason}"
    elif not form.matches(stream.text):
        problem = "does not match"
    return Verdict(form.name, stream.text, len(stream.token_ids), problem)
