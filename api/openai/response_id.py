"""The ids of responses: which frontend has one is written in it, the rest nobody can guess.

    resp_ · rank of the frontend (2 hex digits) · 128 random bits (32 hex digits)

Clients take ids as they are. Must not know how a frontend is reached.
"""

import itertools
import os
import re

# What two hex digits can name; `plan` checks it.
FRONTENDS_MAX = 256
_ID = re.compile(r"resp_([0-9a-f]{2})[0-9a-f]{32}", re.ASCII)
# To ask the system for 16 bytes costs as much as for some hundred times as many.
_DRAWN_AT_ONCE = 256


def _draw_some() -> list[str]:
    """128 random bits each, in hex digits."""
    digits = os.urandom(16 * _DRAWN_AT_ONCE).hex()
    return [digits[start : start + 32] for start in range(0, len(digits), 32)]


# No process of ours is forked, which would give the same out once more.
_digits = itertools.chain.from_iterable(iter(_draw_some, []))


def draw_id(prefix: str) -> str:
    """A new id of any kind: 128 random bits, so that nobody guesses another's."""
    return f"{prefix}_{next(_digits)}"


def draw_response_id(frontend: int) -> str:
    """The id of a new response of this frontend."""
    return response_id_of(frontend, next(_digits))


def item_id_of(response_id: str) -> str:
    """The id of a response's one message: the same random bits, so that they are drawn once."""
    return f"msg_{response_id.removeprefix('resp_')}"


def response_id_of(frontend: int, random_hex: str) -> str:
    """The id of a response of this frontend."""
    assert 0 <= frontend < FRONTENDS_MAX
    return f"resp_{frontend:02x}{random_hex}"


def frontend_of(response_id: str) -> int | None:
    """The rank of the frontend that drew this id; None when none of ours did."""
    match = _ID.fullmatch(response_id)
    return None if match is None else int(match[1], 16)
