"""The requests of a campaign: few, and always the same, so that each has one right answer.

Sans-IO: plain data and pure functions. A script's answer is learnt once from an undisturbed run;
with the null executor it is also recomputed here, since there a token is a pure function of seed,
position and the token before.
"""

from collections.abc import Sequence
from typing import Any

import attrs

from ...engine.worker.null.executor import null_token
from .history import Violation

PROMPTS = (
    "Tell me a story about a fox.",
    "The old lantern went out, and then",
    "Who lives at the end of the lane?",
)
# Short ones end while a fault is on, long ones live through several.
SHORT_TOKENS, MIDDLE_TOKENS = 24, 90
# Some ten steps of the null executor's.
MERGE_MS = 100
# A probe must outlive its moment and its fault: the latest moment is at token 40.
PROBE_TOKENS = 240

# Metadata, which is told at a response's beginning and at its end, whatever that is: more than the
# receive buffer of a client that wants a small one, so that one that does not read holds up the
# server also when its stream is cut short. It is no part of the prompt.
BULK = {f"bulk {number}": "x" * 512 for number in range(16)}


@attrs.frozen
class Script:
    """One request of exactly `tokens` tokens."""

    prompt: str
    seed: int
    tokens: int
    # So long its tokens may wait for each other: an engine dies with some that it has not told.
    merge_ms: int = 0

    def body(self, **fields: Any) -> dict[str, Any]:
        """As a Responses request; `fields` are added."""
        runtime = {"seed": self.seed, "ignore_eos": True, "token_ids": True}
        return {
            "input": self.prompt,
            "max_output_tokens": self.tokens,
            "temperature": 0.8,
            "runtime": {**runtime, "merge_ms": self.merge_ms},
            **fields,
        }


PROBES = tuple(Script(prompt, seed, PROBE_TOKENS) for seed, prompt in enumerate(PROMPTS))
BYSTANDERS = tuple(
    Script(prompt, seed, tokens, merge_ms)
    for seed, prompt in enumerate(PROMPTS, 10)
    for tokens, merge_ms in ((SHORT_TOKENS, 0), (MIDDLE_TOKENS, 0), (MIDDLE_TOKENS, MERGE_MS))
)
SCRIPTS = PROBES + BYSTANDERS


def check_null_tokens(script: Script, token_ids: Sequence[int], vocab_size: int) -> list[Violation]:
    """Whether these are the null executor's tokens; the first depends on the prompt, too."""
    for position in range(1, len(token_ids)):
        wanted = null_token(script.seed, position, token_ids[position - 1], vocab_size=vocab_size)
        if token_ids[position] != wanted:
            evidence = f"token {position} of seed {script.seed} is {token_ids[position]}"
            return [Violation("I2", f"{evidence}, computed here it is {wanted}")]
    return []
