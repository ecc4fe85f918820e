"""Forms of answers in request bodies: vLLM's structured outputs, and OpenAI's output formats.

Sans-IO: JSON values in, `StructuredOutputs` or `ApiError` out. Sizes are checked here; whether a
schema or grammar can be served is decided by the runtime. Chat completions wrap a schema in an
object of its own, Responses do not (`is_flat`); both become the same.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ....engine.errors import InvalidParameter
from ....engine.structured_outputs import CHOICES_MAX, GRAMMAR_CHARACTERS_MAX, StructuredOutputs
from ....runtime.text.json_text import check_nesting
from ...errors import bad_field, to_api_error, unsupported
from ...schema.fields import (
    FLAG,
    TEXT,
    FunctionKind,
    JsonObject,
    missing,
    read_array,
    read_object,
    wrong_type,
)

FORMATS = ("text", "json_object", "json_schema")
_SCHEMA: JsonObject = {"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string"}]}
_TEXT: JsonObject = {"type": "string", "maxLength": GRAMMAR_CHARACTERS_MAX}
_CHOICES: JsonObject = {
    "type": "array", "minItems": 1, "maxItems": CHOICES_MAX, "items": {"type": "string"}
}  # fmt: skip


def _form(
    make: Callable[[object, str], StructuredOutputs | None], schema: JsonObject
) -> FunctionKind:
    """The kind of one of vLLM's forms; None of it asks for nothing."""

    def read(value: object, path: str) -> StructuredOutputs | None:
        try:
            return make(value, path)
        except InvalidParameter as error:
            raise to_api_error(error, {"structured_outputs": path}) from None

    return FunctionKind(read, schema)


def _json(value: object, path: str) -> StructuredOutputs:
    if not isinstance(value, dict | bool | str):
        raise wrong_type(path, "a JSON schema", value)
    try:
        check_nesting(value)
    except ValueError as error:
        raise bad_field(path, str(error)) from None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return StructuredOutputs.json(text)


def _choice(value: object, path: str) -> StructuredOutputs:
    items = enumerate(read_array(value, path))
    return StructuredOutputs.choice([TEXT.read(item, f"{path}[{i}]") for i, item in items])


def _json_object(value: object, path: str) -> StructuredOutputs | None:
    return StructuredOutputs.json_object() if FLAG.read(value, path) else None


FORMS = {
    "json": _form(_json, _SCHEMA),
    "regex": _form(lambda value, path: StructuredOutputs.regex(TEXT.read(value, path)), _TEXT),
    "choice": _form(_choice, _CHOICES),
    "grammar": _form(lambda value, path: StructuredOutputs.grammar(TEXT.read(value, path)), _TEXT),
    "json_object": _form(_json_object, {"type": "boolean"}),
}


def _read_structured_outputs(value: object, path: str) -> StructuredOutputs | None:
    values = read_object(value, path).values
    given = {name: item for name, item in values.items() if item is not None}
    # vLLM's clients send all of its options; one that is off asks for nothing.
    unknown = [name for name in given if name not in FORMS and given[name] is not False]
    if unknown:
        reason = f"is not served; one of {', '.join(FORMS)} is"
        raise unsupported(f"{path}.{unknown[0][:200]}", reason)
    known = [name for name in given if name in FORMS]
    forms = [FORMS[name].read(given[name], f"{path}.{name}") for name in known]
    found: list[StructuredOutputs] = [form for form in forms if form is not None]
    if len(found) > 1:
        raise bad_field(path, f"must have only one of {', '.join(given)}")
    return found[0] if found else None


# vLLM's `structured_outputs`: an object with exactly one of the forms, or none.
STRUCTURED_OUTPUTS = FunctionKind(
    _read_structured_outputs,
    {
        "type": "object",
        "properties": {name: form.schema() for name, form in FORMS.items()},
        "maxProperties": 1,
    },
)


def _read_format(value: object, path: str, *, is_flat: bool = False) -> StructuredOutputs | None:
    """The form that a format asks for; None is plain text."""
    given = read_object(value, path)
    holder = given if is_flat else given.nested("json_schema")
    if holder is not None:
        holder.string("name")
        holder.boolean("strict")
    match given.string("type"):
        case None | "text":
            return None
        case "json_object":
            return StructuredOutputs.json_object()
        case "json_schema":
            if holder is None:
                raise missing(given.at("json_schema"))
            if holder.get("schema") is None:
                raise missing(holder.at("schema"))
            return holder.read("schema", FORMS["json"].read)
        case _:
            raise unsupported(given.at("type"), f"must be one of {', '.join(FORMATS)}")


def _read_text_options(value: object, path: str) -> StructuredOutputs | None:
    return read_object(value, path).read("format", partial(_read_format, is_flat=True))


_TYPE: JsonObject = {"type": {"type": "string", "enum": list(FORMATS)}}
_NAMED: JsonObject = {"name": {"type": "string"}, "strict": {"type": "boolean"}, "schema": {}}
# `response_format` of chat and completions, and `text` of Responses, of which the format counts.
ANSWER_FORMAT = FunctionKind(
    _read_format,
    {
        "type": "object",
        "properties": {**_TYPE, "json_schema": {"type": "object", "properties": _NAMED}},
    },
)
TEXT_OPTIONS = FunctionKind(
    _read_text_options,
    {
        "type": "object",
        "properties": {"format": {"type": "object", "properties": {**_TYPE, **_NAMED}}},
    },
)


def form_of(
    values: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[str, StructuredOutputs] | None:
    """The one form among read values, and the field of `names` that asks for it.

    Raises `ApiError` if another one asks as well.
    """
    given = [(name, values[name]) for name in names if values.get(name) is not None]
    if len(given) > 1:
        raise bad_field(given[1][0], f"must not be together with `{given[0][0]}`")
    return given[0] if given else None
