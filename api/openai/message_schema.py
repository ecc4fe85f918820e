"""JSON Schema of a message in a conversation, as the document has it and its reader takes it.

Sans-IO: constants. What no schema can say is the reader's alone (`message_fields`).
"""

import re

from ..schema.fields import JsonObject
from ..schema.tables import IS_EMPTY

TEXT_PARTS = ("text", "input_text", "output_text")
ROLES = ("system", "developer", "user", "assistant", "tool")
PARTS_MAX = 1024
# OpenAI's rule for names of functions.
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)
NAME_SCHEMA: JsonObject = {"type": "string", "pattern": f"^{NAME.pattern}$"}

_STRING: JsonObject = {"type": "string"}
_PART_SCHEMA: JsonObject = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"type": {"enum": kinds}, name: {"type": "string"}},
            "required": ["type", name],
        }
        for kinds, name in ((list(TEXT_PARTS), "text"), (["refusal"], "refusal"))
    ]
}
# A model may have written any name, and arguments that are no JSON.
_CALLED: JsonObject = {"name": _STRING, "arguments": {"type": ["string", "null"]}}
_CALL_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"id": _STRING, "function": {"type": "object"}},
    "anyOf": [
        {
            "properties": {
                "function": {"type": "object", "properties": _CALLED, "required": ["name"]}
            },
            "required": ["function"],
        },
        {"properties": {"function": {"type": "null"}, **_CALLED}, "required": ["name"]},
    ],
}
_NOTHING: JsonObject = {"enum": [None, *IS_EMPTY.values]}
_CONTENT: JsonObject = {"content": {"type": ["string", "array"]}}
_IS_ASSISTANT: JsonObject = {"role": {"const": "assistant"}}
MESSAGE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "role": {"enum": list(ROLES)},
        "tool_calls": {"type": "array", "items": _CALL_SCHEMA},
        **dict.fromkeys(("tool_call_id", "refusal", "reasoning_content", "reasoning"), _STRING),
        **dict.fromkeys(("function_call", "audio"), _NOTHING),
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "maxItems": PARTS_MAX, "items": _PART_SCHEMA},
            ]
        },
    },
    "required": ["role"],
    "anyOf": [
        {"properties": {**_CONTENT, "tool_calls": {"maxItems": 0}}, "required": ["content"]},
        {"properties": {**_CONTENT, **_IS_ASSISTANT}, "required": ["content"]},
        {
            "properties": {**_IS_ASSISTANT, "tool_calls": {"type": "array", "minItems": 1}},
            "required": ["tool_calls"],
        },
        {
            "properties": {**_IS_ASSISTANT, "refusal": {"type": "string", "minLength": 1}},
            "required": ["refusal"],
        },
    ],
}
