"""Rules between fields of one body, in JSON Schema: what the document says of them.

Sans-IO: constants. Each is held by the reader of the body, whose errors name the field. Rules that
no schema can say are the reader's alone: a name that is among others, a number below another one.
"""

from ...schema.fields import JsonObject

Rules = tuple[JsonObject, ...]


def _absent(*names: str) -> JsonObject:
    return {name: {"type": "null"} for name in names}


def _is(name: str, *values: object) -> JsonObject:
    """Schema of a field with one of these values; a field that is absent is null."""
    required: JsonObject = {} if None in values else {"required": [name]}
    return {"properties": {name: {"enum": list(values)}}, **required}


def _of(name: str, schema: JsonObject, **others: object) -> JsonObject:
    return {"required": [name], "properties": {name: schema, **others}}


def _in_runtime(**fields: object) -> JsonObject:
    return {"runtime": {"properties": fields}}


_WITHOUT_IDS = _in_runtime(input_token_ids={"type": "null"})
_NOT_KEPT = _in_runtime(keep_s={"enum": [0, None]})
# A body whose prompt is token ids.
_OF_TOKEN_IDS = _of(
    "runtime",
    {
        "type": "object",
        "required": ["input_token_ids"],
        "properties": {"input_token_ids": {"type": "array"}},
    },
    **_absent("input", "instructions", "messages"),
)
_INPUT: JsonObject = {"type": ["string", "array"], "minItems": 1}
RESPONSES_ALTERNATIVES = (
    _of("input", _INPUT, **_WITHOUT_IDS),
    _of("previous_response_id", {"type": "string"}, **_WITHOUT_IDS),
    _OF_TOKEN_IDS,
)
CHAT_ALTERNATIVES = (_of("messages", {"type": "array"}, **_WITHOUT_IDS), _OF_TOKEN_IDS)
TOKENIZE_ALTERNATIVES = (
    _of("prompt", {"type": "string"}, **_absent("messages")),
    _of("messages", {"type": "array"}, **_absent("prompt")),
)


def _either(*rules: JsonObject) -> JsonObject:
    return {"anyOf": list(rules)}


_WITH_TOOLS = _either(
    _of("tools", {"type": "array", "minItems": 1}), _is("tool_choice", "auto", "none", None)
)
RESPONSES_RULES: Rules = (
    {"properties": _in_runtime(credit={"type": "null"})},  # which a socket alone can add to
    _WITH_TOOLS,
    _either(
        _is("store", True, None),
        {"properties": {"background": {"enum": [False, None]}, **_NOT_KEPT}},
    ),
)
_SHARED_RULES: Rules = (
    _either(
        _of("stream", {"enum": [True]}, **_absent("prompt_logprobs")),
        {
            "properties": {
                "stream": {"enum": [False, None]},
                "stream_options": {"maxProperties": 0},
                **_NOT_KEPT,
            }
        },
    ),
)
CHAT_RULES: Rules = (
    *_SHARED_RULES,
    _WITH_TOOLS,
    _either(_is("logprobs", True), _is("top_logprobs", 0, None)),
)
MESSAGES_RULES: Rules = (_either(_is("stream", True), {"properties": _NOT_KEPT}),)
COMPLETIONS_RULES: Rules = (
    *_SHARED_RULES,
    _either(_is("echo", True), {"properties": {"max_tokens": {"not": {"const": 0}}}}),
    {"properties": _WITHOUT_IDS},
)
