"""Strict reader of JSON inside a text that a model or a client wrote.

Python's own reader takes more than JSON has: half a pair of surrogates, which no UTF-8 can say
again; NaN and infinities; nesting up to the end of the stack, where a writer a little deeper in it
fails. What is read here can be written, kept and shown to a template.
"""

from typing import Any

import msgspec

# The nesting of schemas, too. More than any function has in its arguments.
NESTING_MAX = 64


def read_json(text: str, nesting_max: int = NESTING_MAX) -> Any:
    """The value of a JSON text. Raises `ValueError` for what is none, or nested too deep."""
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise _too_deep(nesting_max) from None
    check_nesting(value, nesting_max)
    return value


def check_nesting(value: object, nesting_max: int = NESTING_MAX) -> None:
    """Raise `ValueError` for containers in containers beyond `nesting_max`."""
    level = [value]
    for _ in range(nesting_max + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _too_deep(nesting_max)


def _too_deep(nesting_max: int) -> ValueError:
    return ValueError(f"must not be nested more than {nesting_max} deep")
