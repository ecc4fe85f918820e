"""What a query string may hold, as one table for each route that reads one.

Sans-IO: a request in, typed values or an `ApiError` that names the parameter out. As with the
tables of bodies, what no table names is never read, so the OpenAPI document cannot leave it out.
Must not know which parameters a route has.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from ..errors import bad_field
from ..schema.fields import JsonObject
from ..schema.reader import Field, Flag, Integer
from .request import HttpRequest

# A sign and the digits of 2**63; int() of more would only cost time.
INTEGER_CHARACTERS_MAX = 20


@attrs.frozen
class Query:
    """The parameters of one route: flags, integers and texts. Unknown ones are ignored."""

    fields: Mapping[str, Field]

    def read(self, request: HttpRequest | None) -> dict[str, Any]:
        """The typed value of each parameter, None when absent. Raises `ApiError`."""
        assert request is not None
        try:
            texts = {name: request.query_value(name) for name in self.fields}
        except ValueError as error:
            raise bad_field("query", f"cannot be read: {error}") from None
        return {name: _value(field, name, texts[name]) for name, field in self.fields.items()}

    def parameters(self) -> list[JsonObject]:
        """As OpenAPI's parameters."""
        return [
            {
                "name": name,
                "in": "query",
                "required": False,
                "description": field.about,
                "schema": field.kind.schema(),
            }
            for name, field in self.fields.items()
        ]


NO_QUERY = Query({})


def _value(field: Field, name: str, text: str | None) -> Any:
    if text is None:
        return None
    value: object = text
    if isinstance(field.kind, Flag):
        if text not in ("true", "false"):
            raise bad_field(name, "must be true or false", "invalid_type")
        value = text == "true"
    elif isinstance(field.kind, Integer):
        is_number = text.isascii() and text.removeprefix("-").isdecimal()
        if not is_number or len(text) > INTEGER_CHARACTERS_MAX:
            raise bad_field(name, "must be an integer", "invalid_type")
        value = int(text)
    return field.kind.read(value, name)
