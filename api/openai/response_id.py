"""Ids of responses, completions and requests: random; all but a request's name their frontend.

    resp_, chatcmpl_, cmpl_, msg_ · rank of the frontend (2 hex digits) · 128 random bits (32)

Clients take ids as they are.
"""

import os
import re
import secrets

import attrs

# The most that two hex digits can name; `plan` checks it.
FRONTENDS_MAX = 256
_ID = re.compile(r"(?:resp|chatcmpl|cmpl|msg)_([0-9a-f]{2})[0-9a-f]{32}", re.ASCII)
# To ask the system for 16 bytes costs as much as for some hundred times as many.
_DRAWN_AT_ONCE = 256


@attrs.define(eq=False)
class IdSource:
    """Draws ids for one frontend, whose rank it is. No process of ours is forked with one, which
    would give the same out once more.
    """

    frontend: int = 0
    # 128 random bits each, in hex digits, drawn and not used yet.
    _digits: list[str] = attrs.field(factory=list, init=False)
    # Prefix for requests without an id: with a number it is unique, and no secret.
    _prefix: str = attrs.field(factory=lambda: secrets.token_hex(10), init=False)
    _requests: int = attrs.field(default=0, init=False)

    def draw(self, prefix: str) -> str:
        """The id of a new completion of this frontend; it cannot be guessed."""
        return f"{prefix}_{self.frontend:02x}{self._draw_digits()}"

    def draw_response_id(self) -> str:
        """The id of a new response of this frontend."""
        return response_id_of(self.frontend, self._draw_digits())

    def draw_request_id(self) -> str:
        """An id for a request whose client sent none: it is answered, and it is in the log."""
        self._requests += 1
        return f"req_{self._prefix}{self._requests:012x}"

    def _draw_digits(self) -> str:
        if not self._digits:
            drawn = os.urandom(16 * _DRAWN_AT_ONCE).hex()
            self._digits = [drawn[start : start + 32] for start in range(0, len(drawn), 32)]
        return self._digits.pop()


def item_id_of(response_id: str) -> str:
    """The id of a response's message: the same random bits, so that they are drawn once."""
    return f"msg_{response_id.removeprefix('resp_')}"


def response_id_of(frontend: int, random_hex: str) -> str:
    """The id of a response of this frontend."""
    assert 0 <= frontend < FRONTENDS_MAX
    return f"resp_{frontend:02x}{random_hex}"


def frontend_of(response_id: str) -> int | None:
    """The rank of the frontend that drew this id, whatever has it; None when none of ours did."""
    match = _ID.fullmatch(response_id)
    return None if match is None else int(match[1], 16)
