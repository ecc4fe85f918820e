"""Places of sub-schemas in a JSON schema: which keywords hold schemas, maps of schemas, or data.

A name below `properties` is no keyword, whatever it is called, and nothing below `enum` is a
schema. Every pass over schemas takes its tables from here. Sans-IO: pure functions.
"""

from collections.abc import Callable, Iterator
from typing import Any

# Schemas by name: of members, of patterns, of definitions.
DEFINITIONS = ("$defs", "definitions")
MEMBERS = ("properties", "patternProperties")
MAPS = (*MEMBERS, "dependentSchemas", *DEFINITIONS)
# Values that are no schemas; the last three are maps and lists of names, and llguidance's options.
ANNOTATIONS = ("default", "examples")
DATA = ("const", "enum", *ANNOTATIONS, "required", "dependentRequired", "x-guidance")
# Keywords that say nothing of the value.
SILENT = (
    "$schema", "$id", "$comment", "$anchor", *DEFINITIONS, "title", "description", *ANNOTATIONS,
    "deprecated", "readOnly", "writeOnly", "x-guidance",
)  # fmt: skip


def rewritten(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A copy in which each schema is what `change` makes of it, the inner ones first.

    Values of unknown keywords are read as schemas, since references may lead there.
    """
    if isinstance(schema, list):
        return [rewritten(item, change) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict[str, Any]()
    for name, value in schema.items():
        if name in DATA:
            found[name] = value
        elif name in MAPS and isinstance(value, dict):
            found[name] = {each: rewritten(part, change) for each, part in value.items()}
        else:
            found[name] = rewritten(value, change)
    return change(found)


def values_of(schema: object) -> Iterator[tuple[int, str, str, object]]:
    """Values of a schema with depth, keyword and name; the first is the schema itself.

    A keyword is empty in lists, in data, and where the name is no keyword.
    """
    waiting: list[tuple[int, str, str, object, bool]] = [(1, "", "", schema, True)]
    while waiting:
        level, keyword, name, value, is_schema = waiting.pop()
        yield level, keyword, name, value
        if isinstance(value, dict):
            names_schemas = is_schema and keyword in MAPS
            waiting += [
                (level + 1, each if is_schema and not names_schemas else "", each, item,
                 is_schema and (names_schemas or each not in DATA))
                for each, item in value.items()
            ]  # fmt: skip
        elif isinstance(value, list):
            waiting += [(level + 1, "", "", item, is_schema) for item in value]


def join(schema: dict[str, Any], part: dict[str, Any]) -> None:
    """Have the schema, in place, allow only what this other one allows as well."""
    if isinstance(joined := schema.get("allOf", []), list):
        schema["allOf"] = [*joined, part]
