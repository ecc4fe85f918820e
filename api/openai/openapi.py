"""OpenAPI document, made of the table of routes and the tables of fields.

Sans-IO: values in, one JSON object out. Nothing is written down twice: sentences are the handlers'
own first lines, fields are those that bodies and queries are read by.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from ... import __version__
from ..schema.fields import JsonObject
from ..schema.tables import Body, Query

OPENAPI_VERSION = "3.1.0"
_PARAMETER = re.compile(r"\{([a-z]+)(?:\.\.\.)?\}")
_OPENING = re.compile(r"^`[A-Z]+ [^`]+`[:,.]?\s*")
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


class DocumentedRoute(Protocol):
    """A route, as the document needs it."""

    @property
    def method(self) -> str:
        """GET, POST, …"""

    @property
    def path(self) -> str:
        """With `{id}` or `{id...}` for its parameter."""

    @property
    def handler(self) -> Callable[..., Awaitable[None]]:
        """Its docstring is the summary."""

    @property
    def is_open(self) -> bool:
        """Whether it needs no key."""

    @property
    def is_admin(self) -> bool:
        """Whether it needs an admin key."""

    @property
    def body(self) -> Body | None:
        """The table of its JSON body."""

    @property
    def query(self) -> Query:
        """The table of its query."""


def openapi_document(routes: Iterable[DocumentedRoute]) -> JsonObject:
    """The whole document."""
    paths: dict[str, JsonObject] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "Triolet", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR_SCHEMA},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "adminKey": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def summary_of(route: DocumentedRoute) -> str:
    """The first sentence of the handler's docstring, without the route that opens it."""
    first = (route.handler.__doc__ or "").strip().split("\n")[0]
    sentence = _OPENING.sub("", first)
    return sentence[:1].upper() + sentence[1:] if sentence else f"{route.method} {route.path}"


def _operation(route: DocumentedRoute) -> JsonObject:
    security: list[JsonObject] = []
    if not route.is_open:
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
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": route.body.schema()}},
        }
    return operation
