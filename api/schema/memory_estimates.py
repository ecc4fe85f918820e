"""What it costs to keep what a client sent or a model said: estimates, for the bounds of keeping.

A little too high rather than too low, since a bound on memory is made of them. Must not know what
is kept, or why.
"""

import sys

import msgspec

# A number of its own, and its place in each of the three lists that a conversation's ids are in.
TOKEN_ID_BYTES = 56
# A short text, number or pair in a parsed object takes so much more than it does as JSON.
JSON_FACTOR = 10


def text_bytes(text: str) -> int:
    """Of a text; a character takes one byte to four."""
    return sys.getsizeof(text)


def ids_bytes(count: int) -> int:
    """Of so many token ids, as numbers."""
    return TOKEN_ID_BYTES * count


def json_bytes(value: object) -> int:
    """Of a parsed object, whatever is in it."""
    return JSON_FACTOR * len(msgspec.json.encode(value))
