"""Checks what a caller gives with a prompt, before anything is made of it.

An engine drops a message that it cannot read, as it does not know whose it is; so a value of a
wrong type, which Python would pass on, must not get that far: the request would wait for ever.

Sans-IO: values in, nothing out. Must not know prompts, nor sampling parameters, which check
themselves.
"""

import math
from collections.abc import Mapping

from ...engine.errors import InvalidParameter

# What the integers of the wire hold.
PRIORITY_MAX = 2**63 - 1
CREDIT_MAX = 2**63 - 1


def check_arguments(
    labels: Mapping[str, str],
    times_s: Mapping[str, float],
    *,
    priority: int,
    credit: int | None,
    events: bool,
) -> None:
    """Types and, where a type says too little, ranges; lengths and bounds are the engine's.

    `labels` and `times_s` are {name: value}. Raises `InvalidParameter`, naming the argument.
    """
    for name, text in labels.items():
        if not isinstance(text, str):
            raise InvalidParameter(name, "must be text")
        if not text.isascii():
            _check_unicode(name, text)
    if type(priority) is not int or abs(priority) > PRIORITY_MAX:
        raise InvalidParameter("priority", f"must be a whole number up to ±{PRIORITY_MAX}")
    if credit is not None and (type(credit) is not int or not 0 <= credit <= CREDIT_MAX):
        raise InvalidParameter("credit", f"must be a whole number from 0 to {CREDIT_MAX}")
    if type(events) is not bool:
        raise InvalidParameter("events", "must be True or False")
    for name, seconds in times_s.items():
        if type(seconds) not in (int, float) or math.isnan(seconds):
            raise InvalidParameter(name, "must be a number of seconds")


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(name, f"is not Unicode: {error.reason}") from error
