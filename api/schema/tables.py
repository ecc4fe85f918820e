"""Tables of fields: one for each kind of JSON body, one for each route's query.

Sans-IO: an object or a query in, typed values or an `ApiError` that names the field out. A table
reads, documents and tests: what no table names is never read, so the OpenAPI document that is made
of the tables cannot lie, and tests take their bad values from there.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import attrs

from ..errors import bad_field, unsupported
from ..settings import IGNORE, POLICIES, REFUSE, WARN
from .fields import FlagKind, IntegerKind, JsonObject, Kind, TextKind, missing, read_object

# A sign and the digits of 2**63; int() of more would only cost time.
INTEGER_CHARACTERS_MAX = 20
# Limit of a query; our routes know three.
PARAMETERS_MAX = 64
# SDKs have some thirty fields beyond ours; of more names nothing is logged.
NAMES_MAX = 128
# Characters of one name, in the log and in an error.
NAME_CHARACTERS_MAX = 100
# Fields of socket events that are beside a body's own; the session reads them.
EVENT_FIELDS = frozenset({"type", "stream_id", "event_id"})
logger = logging.getLogger(__name__)


@attrs.frozen
class Harmless:
    """Values that ask for nothing, compared with their types: true is not 1."""

    values: Sequence[object]

    def __contains__(self, value: object) -> bool:
        return any(type(value) is type(each) and value == each for each in self.values)


@attrs.frozen
class Unserved:
    """A field that we know and do not serve: refused when it asks for something, else ignored."""

    harmless: Harmless
    reason: str

    def read(self, value: object, path: str) -> None:
        """Refuse all but harmless values, of which none is used."""
        if value not in self.harmless:
            raise unsupported(path, self.reason)

    def schema(self) -> JsonObject:
        """Schema of harmless values."""
        return {"enum": [None, *self.harmless.values], "x-unserved": self.reason}


@attrs.frozen
class Nested:
    """An object with a table of its own."""

    body: "Body"

    def read(self, value: object, path: str) -> dict[str, Any]:
        return self.body.read(read_object(value, path).values, path)

    def schema(self) -> JsonObject:
        return self.body.schema()


@attrs.frozen
class Field:
    """Field of a table: its kind, and a sentence about it for the document."""

    kind: Kind[Any]
    about: str = ""
    required: bool = attrs.field(default=False, kw_only=True)

    def schema(self) -> JsonObject:
        """JSON Schema with the sentence."""
        return {**self.kind.schema(), **({"description": self.about} if self.about else {})}


@attrs.frozen
class Body:
    """The table of one object. Unknown fields are ignored, or refused when `strict`.

    `alternatives` and `rules`, in JSON Schema: the reader of the typed values asks for one of the
    former, and for all of the latter.
    """

    fields: Mapping[str, Field]
    strict: bool = attrs.field(default=False, kw_only=True)
    alternatives: Sequence[JsonObject] = attrs.field(default=(), kw_only=True)
    rules: Sequence[JsonObject] = attrs.field(default=(), kw_only=True)
    _required: tuple[str, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        required = tuple(name for name, field in self.fields.items() if field.required)
        object.__setattr__(self, "_required", required)

    def read(self, values: JsonObject, path: str = "") -> dict[str, Any]:
        """The typed values of the fields that were sent. Raises `ApiError` for the first fault."""
        prefix = f"{path}." if path else ""
        found = {}
        fields = self.fields
        for name, value in values.items():
            field = fields.get(name)
            if field is None:
                if self.strict:
                    raise bad_field(
                        prefix + name[:200], "is not a known field", "unknown_parameter"
                    )
            elif value is not None:
                typed = field.kind.read(value, prefix + name)
                if typed is not None:
                    found[name] = typed
        for name in self._required:
            if name not in found:
                raise missing(prefix + name)
        return found

    def unknown(self, values: JsonObject, path: str = "") -> Iterator[str]:
        """Names of fields that `read` ignores, in objects with tables of their own as well."""
        if self.strict:
            return
        prefix = f"{path}." if path else ""
        for name, value in values.items():
            field = self.fields.get(name)
            if field is None:
                yield prefix + name
            elif isinstance(field.kind, Nested) and isinstance(value, dict):
                yield from field.kind.body.unknown(value, prefix + name)

    def schema(self) -> JsonObject:
        """JSON Schema of the body."""
        found: JsonObject = {
            "type": "object",
            "properties": {name: field.schema() for name, field in self.fields.items()},
        }
        if self._required:
            found["required"] = list(self._required)
        if self.alternatives:
            found["anyOf"] = list(self.alternatives)
        if self.rules:
            found["allOf"] = list(self.rules)
        if self.strict:
            found["additionalProperties"] = False
        return found


# ---- values that ask for nothing


# An empty array, object or string, false or zero.
IS_EMPTY = Harmless((False, 0, 0.0, "", [], {}))
# Any value asks for something.
NEVER = Harmless(())


def one_of(*values: object) -> Harmless:
    """Make these values the harmless ones."""
    return Harmless(values)


# ---- queries


# The value of a header, by its lower-case name; None when there is none.
HeaderReader = Callable[[str], str | None]


def no_header(name: str) -> str | None:
    """Find no header: for requests without any."""
    return None


@attrs.frozen
class Query:
    """The parameters of one route: flags, integers and texts. Unknown ones are ignored.

    Instead of a parameter its header may come: {header, lower case: parameter}. It counts where
    both do: a browser that reads on sends it with the address that it had.
    """

    fields: Mapping[str, Field]
    headers: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)

    def read(self, query: str, header: HeaderReader = no_header) -> dict[str, Any]:
        """The typed value of each parameter, None when absent; the last counts.

        Raises `ApiError`.
        """
        try:
            values = parse_qs(query, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
        except ValueError as error:
            raise bad_field("query", f"cannot be read: {error}") from None
        texts = {name: given[-1] for name, given in values.items()}
        found = {name: _value(field, name, texts.get(name)) for name, field in self.fields.items()}
        for title, name in self.headers.items():
            value = _value(self.fields[name], name, header(title) or None)
            found[name] = found[name] if value is None else value
        return found

    def parameters(self) -> list[JsonObject]:
        """Parameters for OpenAPI."""
        made = [_parameter("query", name, field) for name, field in self.fields.items()]
        return made + [
            # An empty one says nothing.
            {**said, "schema": {"anyOf": [said["schema"], {"const": ""}]}}
            for title, name in self.headers.items()
            for said in [_parameter("header", title, self.fields[name])]
        ]


NO_QUERY = Query({})


def _parameter(place: str, name: str, field: Field) -> JsonObject:
    about = {"description": field.about, "schema": field.kind.schema()}
    return {"name": name, "in": place, "required": False, **about}


def _value(field: Field, name: str, text: str | None) -> Any:
    if text is None:
        return None
    value: object = text
    if isinstance(field.kind, TextKind) and not (text or field.kind.choices):
        return None
    if isinstance(field.kind, FlagKind):
        if text not in ("true", "false"):
            raise bad_field(name, "must be true or false", "invalid_type")
        value = text == "true"
    elif isinstance(field.kind, IntegerKind):
        is_number = text.isascii() and text.removeprefix("-").isdecimal()
        if not is_number or len(text) > INTEGER_CHARACTERS_MAX:
            raise bad_field(name, "must be an integer", "invalid_type")
        value = int(text)
    return field.kind.read(value, name)


@attrs.define(eq=False)
class UnknownFields:
    """Policy of one frontend for fields that no table names, and the names it has warned of.

    A misspelt parameter is dropped by servers of this protocol, and its client never learns of it.
    How many names are remembered is bounded, as clients choose them.
    """

    policy: str = attrs.field(default=WARN, validator=attrs.validators.in_(POLICIES))
    names: set[str] = attrs.field(factory=set, init=False)

    def check(self, body: Body, values: JsonObject, beside: frozenset[str] = frozenset()) -> None:
        """Look a body through; `beside` are known though the table lacks them.

        Raises `ApiError` 400 where such fields are refused.
        """
        if self.policy == IGNORE:
            return
        for name in body.unknown(values):
            if name in beside:
                continue
            name = name[:NAME_CHARACTERS_MAX]
            if self.policy == REFUSE:
                raise bad_field(name, "is not a known field", "unknown_parameter")
            if name not in self.names and len(self.names) < NAMES_MAX:
                self.names.add(name)
                last = "; no more names will be logged" if len(self.names) == NAMES_MAX else ""
                logger.warning("the field %a of a request is not known, and ignored%s", name, last)
