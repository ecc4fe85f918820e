"""Check for schemathesis: what the OpenAPI document allows is accepted, where a schema can say it.

Loaded by schemathesis (`SCHEMATHESIS_HOOKS`), in the place of its own `positive_data_acceptance`.
"""

import re
from typing import Any

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

# JSON Schema compares no two values of one body, and does not look into a text.
UNSAYABLE = (
    r"^best_of: must not exceed `n`",
    r"^(runtime\.)?min_tokens: must not exceed max_tokens",
    r"tools.*: has the same name as another tool",
    r"^tool_choice: (needs|.* is not among) `tools`",
    # A grammar, a pattern or a schema that is a text of its own.
    r"^(structured_outputs|runtime\.structured_outputs|guided_\w+|response_format|text|"
    r"output_config\.format|output_format)\b",
    # Which ids the vocabulary has, where they are names of fields.
    r"^(runtime\.)?logit_bias: must have token ids from 0 to",
    # Items without an effect, and no other.
    r"^input: must not be empty",
    # How long a text becomes is known when it is tokenised, and what a template takes when it runs.
    r"maximum context length",
    r"chat template refused",
    # Whose turn it is.
    r"^messages: must (end with the user's turn|have a message of the user)",
    # Demands that no token meets together.
    r"^the output cannot go on: every token is forbidden",
    # What a stream has said so far.
    r"is beyond the last event",
)


# A bound on what has an effect with `include` alone; other routes have it in their schema.
UNSAYABLE_RESPONSES = (r"^top_logprobs: must be at most \d+ \(max_logprobs\)",)


def accepted_as_documented(ctx: Any, response: Any, case: Any) -> bool | None:
    """A 400 whose sentence is one of these is no finding."""
    if response.status_code == 400:
        message = response.json()["error"]["message"]
        is_responses = case.operation.path.startswith("/v1/responses")
        unsayable = UNSAYABLE + (UNSAYABLE_RESPONSES if is_responses else ())
        if any(re.search(pattern, message) for pattern in unsayable):
            return None
    found: bool | None = positive_data_acceptance(ctx, response, case)
    return found


schemathesis.check(accepted_as_documented)
