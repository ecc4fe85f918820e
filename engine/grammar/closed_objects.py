"""Closed objects: `additionalProperties: false` where a JSON schema lists properties and is silent.

JSON Schema leaves such an object open, so a small model that is masked by it may add members until
its tokens run out. OpenAI's strict mode and xgrammar close them as well. An object stays open where
its schema opens it, where it could not be completed otherwise (a required name that is not listed),
and where schemas are joined, by `allOf`, by a reference with something beside it or by keywords
side by side: what one of them lists, another one would forbid. Sans-IO: pure functions.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from .schema_patterns import target_of
from .subschemas import DEFINITIONS, MEMBERS, SILENT

# Say nothing about which members an object may have.
_NEUTRAL = {*SILENT, "type"}
# Say which members there may be, beside `properties`.
_OPENERS = {
    "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
    "minProperties", "dependentRequired", "dependentSchemas", "const", "enum",
}  # fmt: skip
_REFERENCES = ("$ref", "$dynamicRef")
# Keywords whose schemas are about the same value, by what they hold.
_JOINED_LISTS, _JOINED_MAPS = ("allOf", "anyOf", "oneOf"), ("dependentSchemas",)
_JOINED = ("not", "if", "then", "else")
# And those about parts of it.
_LISTS = ("prefixItems", "items")
_SINGLE = (
    "items", "additionalItems", "contains", "unevaluatedItems", "additionalProperties",
    "unevaluatedProperties",
)  # fmt: skip
Schema = dict[str, Any]


def close_objects(schema: Schema) -> None:
    """Close, in place, every object of this schema that lists its properties and may be closed."""
    joined = _joined(schema)
    found, waiting = set[int](), [schema]
    while waiting:
        node = waiting.pop()
        if id(node) in found:
            continue
        found.add(id(node))
        waiting += [*_beside(node), *_parts(node), *_definitions(node)]
        if id(node) not in joined and _may_close(node):
            node["additionalProperties"] = False


def _may_close(node: Schema) -> bool:
    properties, required = node.get("properties"), node.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    names = all(isinstance(name, str) and name in properties for name in required)
    return names and node.keys().isdisjoint(_OPENERS)


def _joined(root: Schema) -> set[int]:
    """Identities of the schemas that others may be joined with, and so of all parts of them."""
    found = set[tuple[int, bool]]()
    waiting: list[tuple[Schema, bool]] = [(root, False)]
    while waiting:
        node, is_joined = waiting.pop()
        is_joined = is_joined or _voices(node) > 1
        if (id(node), is_joined) in found:
            continue
        found.add((id(node), is_joined))
        with_it = [*_beside(node), *_parts(node), *_referred(root, node)]
        waiting += [(each, is_joined) for each in with_it]
        waiting += [(each, False) for each in _definitions(node)]
    return {identity for identity, is_joined in found if is_joined}


def _voices(node: Schema) -> int:
    """How many schemas speak of one value here; alternatives of one keyword are one."""
    lists = node.get("allOf")
    count = len(lists) if isinstance(lists, list) else 0
    single = ("anyOf", "oneOf", *_REFERENCES, *_JOINED, *_JOINED_MAPS)
    count += sum(name in node for name in single)
    own = node.keys() - _NEUTRAL - {"allOf", *single}
    return count + bool(own)


def _beside(node: Schema) -> Iterator[Schema]:
    """Schemas in it about the same value."""
    return _below(node, _JOINED_LISTS, _JOINED_MAPS, _JOINED)


def _parts(node: Schema) -> Iterator[Schema]:
    """Schemas in it about parts of the value."""
    return _below(node, _LISTS, MEMBERS, _SINGLE)


def _below(
    node: Schema, lists: Iterable[str], maps: Iterable[str], single: Iterable[str]
) -> Iterator[Schema]:
    for name in lists:
        yield from _in_list(node, name)
    for name in maps:
        yield from _in_map(node, name)
    for name in single:
        if isinstance(each := node.get(name), dict):
            yield each


def _definitions(node: Schema) -> Iterator[Schema]:
    for name in DEFINITIONS:
        yield from _in_map(node, name)


def _referred(root: Schema, node: Schema) -> Iterator[Schema]:
    for name in _REFERENCES:
        if isinstance(reference := node.get(name), str):
            _, target = target_of(root, reference)
            if isinstance(target, dict):
                yield target


def _in_list(node: Schema, name: str) -> list[Schema]:
    value = node.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _in_map(node: Schema, name: str) -> list[Schema]:
    value = node.get(name)
    return [e for e in value.values() if isinstance(e, dict)] if isinstance(value, dict) else []
