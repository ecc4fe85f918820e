"""Reads in which form an answer is wanted: OpenAI's formats, and vLLM's `structured_outputs`.

Sans-IO: JSON values in, `StructuredOutputs` or `ApiError` out. Sizes are checked here; whether a
schema or grammar can be served is the runtime's to say, which knows the rules. Must not know what
an answer looks like on the wire.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ...engine.errors import InvalidParameter
from ...engine.structured_outputs import CHOICES_MAX, GRAMMAR_CHARACTERS_MAX, StructuredOutputs
from ...runtime.text.json_text import check_nesting
from ..errors import bad_field, to_api_error, unsupported
from ..schema.fields import Fields, JsonObject
from ..schema.reader import Field, wrong_type

FORMATS = ("text", "json_object", "json_schema")
_MISSING = "missing_required_parameter"
_SCHEMA: JsonObject = {"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string"}]}
_TEXT: JsonObject = {"type": "string", "maxLength": GRAMMAR_CHARACTERS_MAX}
_CHOICES: JsonObject = {"type": "array", "maxItems": CHOICES_MAX, "items": {"type": "string"}}


@attrs.frozen
class AnswerFormat:
    """`response_format` of chat and completions; with `is_flat`, `text.format` of Responses."""

    is_flat: bool = False

    def read(self, value: object, path: str) -> StructuredOutputs | None:
        """See `schema.Kind`. None: plain text."""
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        given = Fields(value, path)
        holder = given if self.is_flat else given.nested("json_schema")
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
                    raise bad_field(given.at("json_schema"), "is missing", _MISSING)
                return _read_schema(holder.get("schema"), holder.at("schema"))
            case _:
                raise unsupported(given.at("type"), f"must be one of {', '.join(FORMATS)}")

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        kind: JsonObject = {"type": {"type": "string", "enum": list(FORMATS)}}
        described: JsonObject = {"name": {"type": "string"}, "strict": {"type": "boolean"}}
        if self.is_flat:
            return {"type": "object", "properties": {**kind, **described, "schema": {}}}
        inner = {"type": "object", "properties": {**described, "schema": {}}}
        return {"type": "object", "properties": {**kind, "json_schema": inner}}


@attrs.frozen
class TextOptions:
    """`text` of Responses, of which the format counts."""

    def read(self, value: object, path: str) -> StructuredOutputs | None:
        """See `schema.Kind`. None: plain text."""
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        wanted = value.get("format")
        return None if wanted is None else AnswerFormat(is_flat=True).read(wanted, f"{path}.format")

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        return {"type": "object", "properties": {"format": AnswerFormat(is_flat=True).schema()}}


@attrs.frozen
class Form:
    """One of vLLM's forms, by name: `json`, `regex`, `choice`, `grammar`, `json_object`."""

    name: str

    def read(self, value: object, path: str) -> StructuredOutputs | None:
        """See `schema.Kind`."""
        return _READERS[self.name](value, path)

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        return _SCHEMAS[self.name]


@attrs.frozen
class StructuredOutputsField:
    """vLLM's `structured_outputs`: an object with exactly one of the forms."""

    def read(self, value: object, path: str) -> StructuredOutputs | None:
        """See `schema.Kind`. None: no form is given."""
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        given = {name: item for name, item in value.items() if item is not None}
        # vLLM's clients send all of its options; one that is off asks for nothing.
        unknown = [name for name in given if name not in _READERS and given[name] is not False]
        if unknown:
            reason = f"is not served; one of {', '.join(_READERS)} is"
            raise unsupported(f"{path}.{unknown[0][:200]}", reason)
        forms = [
            _READERS[name](item, f"{path}.{name}")
            for name, item in given.items()
            if name in _READERS
        ]
        found = [form for form in forms if form is not None]
        if len(found) > 1:
            raise bad_field(path, f"must have only one of {', '.join(given)}")
        return found[0] if found else None

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        return {"type": "object", "properties": _SCHEMAS, "maxProperties": 1}


def _read_schema(value: object, path: str) -> StructuredOutputs:
    if value is None:
        raise bad_field(path, "is missing", _MISSING)
    if not isinstance(value, dict | bool | str):
        raise wrong_type(path, "a JSON schema", value)
    try:
        check_nesting(value)
    except ValueError as error:
        raise bad_field(path, str(error)) from None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _made(lambda: StructuredOutputs.json(text), path)


def _read_text(make: Callable[[str], StructuredOutputs]) -> Callable[..., StructuredOutputs]:
    def read(value: object, path: str) -> StructuredOutputs:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        return _made(lambda: make(value), path)

    return read


def _read_choice(value: object, path: str) -> StructuredOutputs:
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise wrong_type(f"{path}[{index}]", "a string", item)
    return _made(lambda: StructuredOutputs.choice(value), path)


def _read_json_object(value: object, path: str) -> StructuredOutputs | None:
    if not isinstance(value, bool):
        raise wrong_type(path, "true or false", value)
    return StructuredOutputs.json_object() if value else None


def _made(make: Callable[[], StructuredOutputs], path: str) -> StructuredOutputs:
    try:
        return make()
    except InvalidParameter as error:
        raise to_api_error(error, {"structured_outputs": path}) from None


_READERS: Mapping[str, Callable[[object, str], StructuredOutputs | None]] = {
    "json": _read_schema,
    "regex": _read_text(StructuredOutputs.regex),
    "choice": _read_choice,
    "grammar": _read_text(StructuredOutputs.grammar),
    "json_object": _read_json_object,
}
_SCHEMAS: dict[str, JsonObject] = {
    "json": _SCHEMA,
    "regex": _TEXT,
    "choice": _CHOICES,
    "grammar": _TEXT,
    "json_object": {"type": "boolean"},
}
STRUCTURED_OUTPUTS = Field(
    StructuredOutputsField(), "The answer must match a schema, regex, choice or grammar."
)
# The older names of forms, and OpenAI's; of these and `structured_outputs` only one may be given.
FORM_FIELDS: dict[str, Field] = {
    "response_format": Field(
        AnswerFormat(), "The answer must be JSON, of a schema if one is given."
    ),
    "guided_json": Field(Form("json"), "The older name of `structured_outputs.json`."),
    "guided_regex": Field(Form("regex"), "The older name of `structured_outputs.regex`."),
    "guided_choice": Field(Form("choice"), "The older name of `structured_outputs.choice`."),
    "guided_grammar": Field(Form("grammar"), "The older name of `structured_outputs.grammar`."),
}

_FORM_NAMES = ("structured_outputs", *FORM_FIELDS)


def form_of(values: Mapping[str, Any], *others: str) -> tuple[str, StructuredOutputs] | None:
    """The one form among read values, and the field that asks for it. Raises `ApiError`.

    `others` are fields beside those of `FORM_FIELDS` that may ask for one.
    """
    names = (*_FORM_NAMES, *others)
    if values.keys().isdisjoint(names):
        return None
    given = [(name, values[name]) for name in names if values.get(name) is not None]
    if len(given) > 1:
        raise bad_field(given[1][0], f"must not be together with `{given[0][0]}`")
    return given[0] if given else None
