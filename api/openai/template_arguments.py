"""Arguments of requests for a chat template: thinking on or off, effort, others, reasoning.

Sans-IO: JSON values in, scalars or `ApiError` out. A template is a program: it is given nothing but
strings, numbers, true, false and null, and nothing under the names that the conversation has.
"""

import re
from collections.abc import Mapping
from typing import Any

from ...runtime.text.answer_format import AnswerFormat
from ..errors import bad_field
from ..schema.fields import FLAG, FunctionKind, JsonObject, TextKind, read_object
from ..schema.tables import Body, Field

# Pulled out of the air: templates in use take one or two.
ARGUMENTS_MAX = 32
ARGUMENT_CHARACTERS_MAX = 4096
EFFORT_CHARACTERS_MAX = 32
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}", re.ASCII)
# Names of `ChatTemplate.render`, beside those of special tokens.
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
Scalar = str | int | float | bool | None


def _read_arguments(value: object, path: str) -> dict[str, Scalar]:
    given = read_object(value, path).values
    if len(given) > ARGUMENTS_MAX:
        raise bad_field(path, f"must have at most {ARGUMENTS_MAX} arguments")
    found: dict[str, Scalar] = {}
    for name, argument in given.items():
        place = f"{path}.{name[:64]}"
        if name in _RESERVED or name.endswith("_token"):
            raise bad_field(place, "is not an argument: the server sets it")
        if _NAME.fullmatch(name) is None:
            raise bad_field(place, "must be named by at most 64 ASCII letters, digits, underscores")
        if not isinstance(argument, Scalar):
            raise bad_field(place, "must be a string, a number, true, false or null")
        if isinstance(argument, str) and len(argument) > ARGUMENT_CHARACTERS_MAX:
            raise bad_field(place, f"must have at most {ARGUMENT_CHARACTERS_MAX} characters")
        found[name] = argument
    return found


_SCHEMA: JsonObject = {
    "type": "object",
    "maxProperties": ARGUMENTS_MAX,
    "propertyNames": {
        "pattern": f"^{_NAME.pattern}$",
        "not": {"anyOf": [{"enum": list(_RESERVED)}, {"pattern": "_token$"}]},
    },
    "additionalProperties": {
        "anyOf": [
            {"type": "string", "maxLength": ARGUMENT_CHARACTERS_MAX},
            *({"type": kind} for kind in ("number", "boolean", "null")),
        ]
    },
}
TEMPLATE_ARGUMENTS = Field(
    FunctionKind(_read_arguments, _SCHEMA),
    "Variables for the model's chat template, such as `enable_thinking`; scalars only.",
)
ENABLE_THINKING = Field(FLAG, "Whether the model thinks first, where its chat template asks.")
_EFFORT_KIND = TextKind(characters_max=EFFORT_CHARACTERS_MAX)
EFFORT = Field(
    _EFFORT_KIND, "For the chat template, in the model's words; `none` is `enable_thinking: false`."
)
_SUMMARY = TextKind(choices=("auto", "concise", "detailed"))
# `reasoning` of Responses; the older name of `summary` goes with it.
REASONING = Body(
    {
        "effort": EFFORT,
        "summary": Field(_SUMMARY, "The reasoning, unabridged, comes as its summary."),
        "generate_summary": Field(_SUMMARY, "The older name of `summary`."),
    }
)


def template_arguments(
    values: Mapping[str, Any], answer_format: AnswerFormat
) -> dict[str, Scalar] | None:
    """Arguments that read values give to the template; the most explicit one wins. None: none."""
    effort, thinks = values.get("reasoning_effort"), values.get("enable_thinking")
    found: dict[str, Scalar] = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none" and thinks is None:
        thinks = False
    if thinks is not None:
        found |= dict.fromkeys(answer_format.variables, thinks)
    return {**found, **values.get("chat_template_kwargs", {})} or None


def with_reasoning(message: dict[str, Any], reasoning: str | None) -> dict[str, Any]:
    """An assistant's message with its reasoning, by the names that chat templates know."""
    if not reasoning:
        return message
    found = {**message, "reasoning_content": reasoning}
    # The template of gpt-oss refuses reasoning beside text before a call.
    has_both = message.get("tool_calls") and message["content"]
    return found if has_both else {**found, "thinking": reasoning}
