"""Routes, and the OpenAPI document that is made of them and of the tables of fields.

Sans-IO: routes in, one JSON object out. Nothing is written down twice: sentences are the handlers'
own first lines, fields are those that bodies and queries are read by.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from ... import __version__
from ..application import Call
from ..openai.fields.option_fields import RANK, RANK_FIELD, RANK_HEADER
from ..schema.fields import JsonObject
from ..schema.tables import NO_QUERY, Body, Query
from ..streams.claims import HEADER, KEY

OPENAPI_VERSION = "3.1.0"
_PARAMETER = re.compile(r"\{([a-z]+)(?:\.\.\.)?\}")
_OPENING = re.compile(r"^`[A-Z]+ [^`]+`[:,.]?\s*")
# Keywords with further schemas, beside properties.
_INNER = ("items", "anyOf", "additionalProperties")
NO_MAXIMA = MappingProxyType[str, float]({})
_KEY_PARAMETER: JsonObject = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "Sent again with the same key and body, it is not executed again:"
    " the answer is the same. 409, 410 and 422 say why that cannot be.",
    "schema": {"type": "string", "pattern": f"^{KEY.pattern}$"},
}
_RANK_PARAMETER: JsonObject = {
    "name": RANK_HEADER,
    "in": "header",
    "required": False,
    "description": f"As `{RANK}` of the body, and goes before it.",
    "schema": RANK_FIELD.kind.schema(),
}
_ERROR_SCHEMA: JsonObject = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


Handler = Callable[[Call], Awaitable[None]]


@attrs.frozen
class Route:
    """Method on a path; `{id}` stands for one segment, `{id...}` for the rest."""

    method: str
    path: str
    handler: Handler
    is_open: bool = False
    # Only for admin keys; without any in the settings there is no such route.
    is_admin: bool = attrs.field(default=False, kw_only=True)
    # The table of its JSON body, for those that have one.
    body: Body | None = attrs.field(default=None, kw_only=True)
    # A body that can be sent as it is.
    example: JsonObject = attrs.field(factory=dict, kw_only=True)
    # The table of its query.
    query: Query = attrs.field(default=NO_QUERY, kw_only=True)
    # Logged at debug, as it is asked for all the time, or is a part of a page.
    is_quiet: bool = attrs.field(default=False, kw_only=True)
    # Whether it generates, so that it takes an idempotency key and an engine's rank.
    is_keyed: bool = attrs.field(default=False, kw_only=True)

    def match(self, path: str) -> str | None:
        """Match a path: what stands for `{id}` ("" without one), or None."""
        mark = "{id...}" if self.path.endswith("{id...}") else "{id}"
        prefix, found, suffix = self.path.partition(mark)
        if not found:
            return "" if path == self.path else None
        if not (path.startswith(prefix) and path.endswith(suffix)):
            return None
        value = path[len(prefix) : len(path) - len(suffix)]
        return None if "/" in value and mark == "{id}" else value or None


def openapi_document(
    routes: Iterable[Route],
    *,
    has_keys: bool = True,
    maxima: Mapping[str, float] = NO_MAXIMA,
) -> JsonObject:
    """The whole document; `has_keys`: whether users need one; `maxima` are this server's bounds, by
    the name that a schema has them under (`x-maximum`).
    """
    paths: dict[str, JsonObject] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        is_open = route.is_open or not (has_keys or route.is_admin)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, is_open=is_open)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "Triolet", "version": __version__},
        "paths": _with_maxima(paths, maxima),
        "components": {
            "schemas": {"Error": _ERROR_SCHEMA},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "adminKey": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _with_maxima(value: Any, maxima: Mapping[str, float]) -> Any:
    """A copy, as tables of fields are everybody's."""
    if isinstance(value, list):
        return [_with_maxima(each, maxima) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _with_maxima(each, maxima) for name, each in value.items()}
    if found.get("x-maximum") in maxima:
        found["maximum"] = maxima[found["x-maximum"]]
    return found


def summary_of(route: Route) -> str:
    """The first sentence of the handler's docstring, without the route that opens it."""
    first = (route.handler.__doc__ or "").strip().split("\n")[0]
    sentence = _OPENING.sub("", first)
    return sentence[:1].upper() + sentence[1:] if sentence else f"{route.method} {route.path}"


def _operation(route: Route, *, is_open: bool) -> JsonObject:
    security: list[JsonObject] = []
    if not is_open:
        security = [{"adminKey" if route.is_admin else "key": []}]
    operation: JsonObject = {
        "operationId": route.handler.__name__,
        "summary": summary_of(route),
        "security": security,
        "responses": {
            "200": {"description": "The answer; server-sent events where `stream` asked for them."},
            "default": {
                "description": "What was wrong.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    parameters: list[JsonObject] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += route.query.parameters()
    if route.is_keyed:
        parameters += [_KEY_PARAMETER, _RANK_PARAMETER]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schema = with_nulls(route.body.schema())
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema, "example": route.example}},
        }
    return operation


def with_nulls(schema: Any) -> Any:
    """A schema in which every field that may be left out may be null: SDKs send both."""
    if isinstance(schema, list):
        return [with_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: with_nulls(schema[key]) if key in _INNER else schema[key] for key in schema}
    if "properties" in schema:
        properties, required = schema["properties"], schema.get("required", ())
        is_open = schema.get("type") == "object"
        found["properties"] = {
            name: _or_null(inner) if is_open and name not in required else inner
            for name, inner in ((name, with_nulls(each)) for name, each in properties.items())
        }
    return found


def _or_null(schema: JsonObject) -> JsonObject:
    choices = schema.get("enum")
    if (isinstance(choices, list) and None in choices) or not schema.keys() - {"description"}:
        return schema
    about = {"description": schema["description"]} if "description" in schema else {}
    if "anyOf" in schema and "type" not in schema:
        assert isinstance(schema["anyOf"], list)
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}], **about}
