"""Memory estimates for what is kept of requests and responses.

A little too high rather than too low, since a bound on memory is made of them.
"""

import sys

import msgspec

# A number of its own, and its place in each of the three lists that a conversation's ids are in.
TOKEN_ID_BYTES = 56
# A short text, number or pair in a parsed object takes so much more than it does as JSON.
JSON_FACTOR = 10


def text_bytes(text: str) -> int:
    """A text's memory; a character takes one byte to four."""
    return sys.getsizeof(text)


def ids_bytes(count: int) -> int:
    """Memory of so many token ids, as Python numbers in lists."""
    return TOKEN_ID_BYTES * count


def json_bytes(value: object) -> int:
    """Memory of a parsed JSON object, whatever is in it."""
    return JSON_FACTOR * len(msgspec.json.encode(value))
