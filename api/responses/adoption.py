"""Adoption of responses: what the journal keeps of each, from which it is built again.

Its ids, event numbers and deltas are those of before, as they are a function of the request and
its tokens. The runtime does not read the notes.
"""

import attrs

from ...runtime.text.outputs import GenerationOutput
from ..openai.response_events import Ending
from ..streams.adoption import KeptRequest
from .history import Conversation

SURFACE = "responses"


@attrs.frozen(kw_only=True)
class KeptResponseRequest(KeptRequest):
    """The body, and the conversation that it continues."""

    before: Conversation | None = None
    # The socket session that it is kept for alone.
    session: str = ""


@attrs.frozen(kw_only=True)
class KeptEnding:
    """The end, behind so many output tokens, by CLOCK_MONOTONIC; and for whom it is kept."""

    ending: Ending
    token_count: int
    ended_ns: int
    is_stored: bool
    session: str = ""
    is_keyed: bool = False
    # The prompt, which is not kept, had opened the model's reasoning.
    is_opened: bool = False


def first_tokens(output: GenerationOutput, count: int) -> GenerationOutput:
    """The output without what is behind so many of its tokens."""
    texts = output.parts[:count]
    return GenerationOutput(
        "".join(texts),
        output.token_ids[:count],
        output.token_count - len(output.token_ids) + count,
        index=output.index,
        logprobs=None if output.logprobs is None else output.logprobs.between(0, count),
        texts=texts,
    )
