"""The ids of responses: which frontend has one is written in it, the rest nobody can guess.

    resp_ · rank of the frontend (2 hex digits) · 128 random bits (32 hex digits)

Clients take ids as they are. Must not know how a frontend is reached.
"""

import re
import secrets

# What two hex digits can name; `plan` checks it.
FRONTENDS_MAX = 256
_ID = re.compile(r"resp_([0-9a-f]{2})[0-9a-f]{32}", re.ASCII)


def draw_id(prefix: str) -> str:
    """A new id of any kind: 128 random bits, so that nobody guesses another's."""
    return f"{prefix}_{secrets.token_hex(16)}"


def draw_response_id(frontend: int) -> str:
    """The id of a new response of this frontend."""
    return response_id_of(frontend, secrets.token_hex(16))


def response_id_of(frontend: int, random_hex: str) -> str:
    """The id of a response of this frontend."""
    assert 0 <= frontend < FRONTENDS_MAX
    return f"resp_{frontend:02x}{random_hex}"


def frontend_of(response_id: str) -> int | None:
    """The rank of the frontend that drew this id; None when none of ours did."""
    match = _ID.fullmatch(response_id)
    return None if match is None else int(match[1], 16)
