"""Number of patterns in a JSON schema that one text may have to match at once.

llguidance intersects them, and takes time and memory that double with each: 14 short ones took 8 s
and 660 MB, 18 more memory than there was, which ends the process. They come together where schemas
are joined: by `allOf`, by a reference with something beside it, by keywords side by side, and from
there on in all that the joined ones say of one property or item.

The count is an upper bound: the sum over what is joined, the most of what is only alternative. What
a reference contributes is found by counting again until nothing grows, so that recursion ends, and
recursion that may join something to itself exceeds any bound. Sans-IO: pure functions. Must not
know llguidance, or what the bound is.
"""

import re
from collections import deque
from urllib.parse import unquote

import attrs

from .subschemas import DATA, DEFINITIONS, MEMBERS, values_of

_OWN = ("pattern", "format")
_REFERENCES = ("$ref", "$dynamicRef")
# Schemas by name, of which a text meets one.
_NAMED = (*MEMBERS, "dependentSchemas")
# Schemas that are met by reference alone, and what is no schema.
_ELSEWHERE = (*DEFINITIONS, *DATA)
# Schemas looked at, again and again where references depend on one another; about 0.2 s.
VISITS_MAX = 160_000
# Pieces of a regular expression: classes and escapes, groups, and counts of at most nine digits.
_PIECE = re.compile(
    r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]|[^{*+?]|[{*+?](?!\d))|\{(\d{1,9}(?:,\d{0,9})?)\}",
    re.DOTALL,
)
# Digits of a place in a list; no schema has longer ones.
_PLACE_DIGITS_MAX = 6


def patterns_together(schema: object, most: int) -> int:
    """How many, or `most` + 1: they may be more, or it takes too long to count.

    `schema` is not nested too deep for recursion.
    """
    objects = [value for *_, value in values_of(schema) if isinstance(value, dict)]
    patterns = {text for each in objects for n in _OWN if isinstance(text := each.get(n), str)}
    if len(patterns) <= most:
        return len(patterns)
    moved = any("$id" in each for each in objects if each is not schema)
    counter = _Counter(schema, most, moved)
    counter.count(schema, "")
    while counter.waiting:
        counter.update(counter.waiting.popleft())
        if counter.visits > VISITS_MAX:
            return most + 1
    return counter.count(schema, "")


@attrs.define(eq=False)
class _Counter:
    root: object
    most: int
    # True if some references count from another root.
    moved: bool
    visits: int = 0
    # Known contribution of each reference, and which others have to be counted if it grows.
    known: dict[str, int] = attrs.field(factory=dict)
    used_by: dict[str, set[str]] = attrs.field(factory=dict)
    # To be counted, again if there is news; bounded by how often each can grow.
    waiting: deque[str] = attrs.field(factory=deque)

    def count(self, schema: object, by: str) -> int:
        """The patterns in a schema; `by` is the reference that leads to it, or empty."""
        if not isinstance(schema, dict):
            return 0
        self.visits += 1
        total = 0
        for name, value in schema.items():
            match value:
                case str() if name in _OWN:
                    total += 1
                case str() if name in _REFERENCES:
                    total += self._of(value, by)
                case list() if name == "allOf":
                    total += sum(self.count(item, by) for item in value)
                case list() if name not in _ELSEWHERE:
                    total += max((self.count(item, by) for item in value), default=0)
                case dict() if name in _NAMED:
                    total += max((self.count(item, by) for item in value.values()), default=0)
                case dict() if name not in _ELSEWHERE:
                    total += self.count(value, by)
        return min(total, self.most + 1)

    def update(self, reference: str) -> None:
        """Count what the reference leads to; who uses it comes again if that has grown."""
        found, target = (False, None) if self.moved else target_of(self.root, reference)
        # A reference with a name of its own may be anything in the schema.
        count = self.count(target, reference) if found else self.most + 1
        if count > self.known[reference]:
            self.known[reference] = count
            self.waiting += self.used_by[reference]

    def _of(self, reference: str, by: str) -> int:
        if reference not in self.known:
            self.known[reference] = 0
            self.used_by[reference] = set()
            self.waiting.append(reference)
        if by:
            self.used_by[reference].add(by)
        return self.known[reference]


def repetitions(pattern: str) -> int:
    """How often counts of a regular expression repeat one thing, groups in groups multiplied."""
    groups, last = [1], 1
    for piece, count in _PIECE.findall(pattern):
        if piece == "(":
            groups.append(1)
            last = 1
        elif piece == ")" and len(groups) > 1:
            last = groups.pop()
        elif count:
            last *= max(int(each or 1) for each in count.split(","))
        else:
            last = 1
        groups[-1] = max(groups[-1], last)
    return max(groups)


def target_of(root: object, reference: str) -> tuple[bool, object]:
    """Whether the reference is a place in the schema, and what is there."""
    first, *parts = reference.split("/")
    place = root
    for part in parts:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and name in place:
            place = place[name]
        elif isinstance(place, list) and _is_place(name) and int(name) < len(place):
            place = place[int(name)]
        else:
            return False, None
    return first == "#", place


def _is_place(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= _PLACE_DIGITS_MAX
